"""Where images come from: two splits of labelled images per source of the `data:` block."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from autosparse.data.augment import Numbers
from autosparse.data.batches import Indices
from autosparse.data.config import ImageData
from autosparse.data.encoded import MEMORY, EncodedImages, open_encoded
from autosparse.data.fingerprint import digest, sampled
from autosparse.data.idx import read_split


class Images(Protocol):
    """The labelled images of one split."""

    labels: Tensor
    scale: float

    @property
    def shape(self) -> tuple[int, int, int]: ...

    def pixels(self, indices: Indices) -> Tensor:
        """uint8 (samples, channels, height, width); `scale` is white."""

    def random_crops(self, indices: Indices, numbers: Numbers) -> Tensor:
        """The same, each a random part of its image."""

    def fingerprint(self) -> str:
        """A checksum of the labels and of some images."""


@dataclass
class StoredImages:
    """Images that are in memory."""

    all_pixels: Tensor
    labels: Tensor
    scale: float = 255.0
    encoded: str | None = None  # the fingerprint of the files that the images were decoded from

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.all_pixels.shape[1:]
        return channels, height, width

    def pixels(self, indices: Indices) -> Tensor:
        return self.all_pixels[torch.from_numpy(indices)]

    def random_crops(self, indices: Indices, numbers: Numbers) -> Tensor:
        raise ValueError("resized-crop-flip is for image files; small images take augment: pad-crop-flip")

    def fingerprint(self) -> str:
        if self.encoded is not None:
            return self.encoded
        images = self.pixels(sampled(len(self.labels)))
        return digest([str(tuple(self.all_pixels.shape)), self.labels.numpy().tobytes(), images.numpy().tobytes()])


def open_images(config: ImageData, cache: Path | None) -> tuple[Images, Images]:
    """The images to train on and to validate on."""
    if config.source in ("digits", "idx"):
        if config.augment == "resized-crop-flip":
            raise ValueError(
                f"augment: resized-crop-flip is for image files; source: {config.source} takes pad-crop-flip or none"
            )
        pair = _digits() if config.source == "digits" else _idx(config)
        limits = (config.limit, config.limit_test)
        train, test = (_shaped(images, limit, config) for images, limit in zip(pair, limits, strict=True))
        result: tuple[Images, Images] = train, test
    else:
        encoded, encoded_test = open_encoded(config, cache)
        result = (encoded if config.augment == "resized-crop-flip" else _in_memory(encoded)), _in_memory(encoded_test)
    for images, split in zip(result, ("training", "validation"), strict=True):
        _check_labels(images.labels, config.classes or class_count(result), split)
    return result


def class_count(splits: tuple[Images, Images]) -> int:
    """As many classes as the labels have."""
    return 1 + max(int(images.labels.max()) for images in splits)


def _digits() -> tuple[StoredImages, StoredImages]:
    """The 1,797 images of 8x8 pixels in 17 greys that scikit-learn has too, 450 of them to validate on."""
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as stored:
        pixels = torch.from_numpy(stored["images"]).view(-1, 1, 8, 8)
        labels = torch.from_numpy(stored["labels"].astype(np.int64))
        splits = [torch.from_numpy(stored[name].astype(np.int64)) for name in ("training", "validation")]
    train, test = (StoredImages(pixels[split], labels[split], 16.0) for split in splits)
    return train, test


def _idx(config: ImageData) -> tuple[StoredImages, StoredImages]:
    folder = Path(str(config.path)).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"data.path = {config.path} is not a folder; source: idx looks there for train-images-idx3-ubyte.gz"
        )
    pairs = (read_split(folder, split) for split in (config.train_split, config.test_split or "t10k"))
    train, test = (StoredImages(images[:, None], labels.long()) for images, labels in pairs)
    if train.shape != test.shape:
        raise ValueError(f"{folder}: training images are {_size(train)} but the others {_size(test)}")
    return train, test


def _shaped(images: StoredImages, limit: int | None, config: ImageData) -> StoredImages:
    """As many images as are asked for, in the recipe's number of channels."""
    if config.image_size is not None and images.shape[1:] != (config.image_size, config.image_size):
        raise ValueError(
            f"data.image_size = {config.image_size}, but the images of source: {config.source} are {_size(images)}; "
            "leave image_size out, or give that size"
        )
    pixels = images.all_pixels[:limit].expand(-1, config.channels, -1, -1).contiguous()
    return StoredImages(pixels, images.labels[:limit], images.scale)


def _in_memory(images: EncodedImages) -> Images:
    """Decoded once and kept, if there is enough memory."""
    channels, height, width = images.shape
    if len(images.labels) * channels * height * width > MEMORY:
        return images
    return StoredImages(images.pixels(np.arange(len(images.labels))), images.labels, encoded=images.fingerprint())


def _check_labels(labels: Tensor, classes: int, split: str) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"the {split} labels run from {low} to {high}, but data.classes = {classes} allows 0 to {classes - 1}"
            + (" (-1 stands for a hidden label: set data.test_split to a split that has them)" if low == -1 else "")
        )


def _size(images: StoredImages) -> str:
    return f"{images.shape[1]}x{images.shape[2]}"
