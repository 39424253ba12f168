"""The `data:` block of a recipe: which samples, from where, in which batches."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Augmentation = Literal["none", "pad-crop-flip", "resized-crop-flip"]


class Block(BaseModel):
    """A frozen block whose unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Common(Block):
    """What images and sentences share."""

    path: str | None = Field(None, description="Local folder or file; needed by every source but digits and hub.")
    hub: str | None = Field(None, description="Name on the Hugging Face hub, such as uoft-cs/cifar10, or a local copy of it.")
    subset: str | None = Field(None, description="Configuration of the hub's dataset, such as de-en.")
    limit: int | None = Field(None, ge=1, description="Use only this many training samples, the first ones.")
    limit_test: int | None = Field(None, ge=1, description="Use only this many validation and test samples.")
    workers: int = Field(0, ge=0, description="Processes that prepare batches; 0 prepares them in the training process.")

    @model_validator(mode="after")
    def _has_place(self) -> Self:
        source = vars(self)["source"]
        if source == "digits":
            if self.path or self.hub:
                raise ValueError(f"source: {source} comes with the package; leave path and hub out")
        elif source == "hub":
            if not self.hub:
                raise ValueError("source: hub needs `hub`, the dataset's name such as uoft-cs/cifar10")
        elif not self.path:
            raise ValueError(f"source: {source} needs `path`, the folder or file with the data")
        return self


class ImageData(Common):
    """Labelled images."""

    kind: Literal["images"] = "images"
    source: Literal["digits", "idx", "folder", "parquet", "hub"] = Field(
        description="digits: 1,797 images that come with the package; idx: MNIST's files; folder: train/CLASS/*.jpg, or "
        "CLASS/*.jpg alone; parquet: files with an image and a label column; hub: a dataset on the Hugging Face hub."
    )
    batch_size: int = Field(ge=1, description="Images per step, over all processes.")
    image_size: int | None = Field(None, ge=1, description="Side of the square images; None keeps their size.")
    channels: Literal[1, 3] = 3
    classes: int | None = Field(None, ge=2, description="By default as many as the labels have.")
    augment: Augmentation = Field("none", description="Augmentation of training images; resized-crop-flip is ImageNet's.")
    mean: tuple[float, ...] = Field((0.0,), description="Subtracted from pixels in [0, 1]; one value, or one per channel.")
    std: tuple[float, ...] = (1.0,)
    image_column: str | None = Field(None, description="Column of the images; found automatically if only one fits.")
    label_column: str | None = None
    train_split: str = "train"
    test_split: str | None = Field(None, description="Split to validate on; by default validation or test, whichever exists.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise ValueError(f"{name} has {len(values)} values for {self.channels} channels; give 1 or {self.channels}")
        if min(self.std) <= 0:
            raise ValueError(f"std = {list(self.std)}; every value must be above 0")
        if self.augment == "resized-crop-flip" and self.image_size is None:
            raise ValueError("augment: resized-crop-flip needs an image_size, such as 224")
        return self


class TranslationData(Common):
    """Pairs of sentences."""

    kind: Literal["translation"]
    source: Literal["files", "parquet", "hub"] = Field(
        description="files: train.en and train.de line by line, .gz allowed; parquet or hub: a translation column."
    )
    languages: tuple[str, str] = Field(("en", "de"), description="From the first into the second.")
    train_split: str = Field("train", description="Split, or file name without its language, to train on.")
    validation_split: str = "validation"
    test_split: str = "test"
    tokens_per_batch: int = Field(ge=16, description="Target tokens per step, padding included, over all processes.")
    vocabulary: int = Field(ge=300, description="Pieces of the byte-pair encoding that both languages share.")
    max_length: int = Field(128, ge=2, description="Longer training sentences are left out.")
    lowercase: bool = False

    @model_validator(mode="after")
    def _two_languages(self) -> Self:
        if self.languages[0] == self.languages[1]:
            raise ValueError(f"languages are both {self.languages[0]!r}; give two different ones, such as [en, de]")
        return self


class _Rows(Common):
    """What tables and texts share."""

    batch_size: int = Field(ge=1, description="Rows per step, over all processes.")
    held_out: float = Field(0.1, gt=0, lt=1, description="Share of the rows to validate on where no file or split is for that.")


class TableData(_Rows):
    """Rows of numbers and words with a class in one column."""

    kind: Literal["table"]
    source: Literal["csv"] = Field("csv", description="A CSV file with a header, or a folder with train.csv and test.csv.")
    target: str = Field(description="The column of the class.")


class TextData(_Rows):
    """Texts with their classes."""

    kind: Literal["text"]
    source: Literal["csv", "hub"] = Field(description="csv: a file with a header, or a folder with train.csv and test.csv.")
    text_column: str = "text"
    label_column: str = "label"
    train_split: str = Field("train", description="Split of the hub's dataset to train on.")
    vocabulary: int = Field(20_000, ge=100, description="Words are hashed into this many numbers.")
    max_length: int = Field(64, ge=2, description="Words of a text that are read.")


AnyData = ImageData | TranslationData | TableData | TextData
DataConfig = Annotated[AnyData, Field(discriminator="kind")]
