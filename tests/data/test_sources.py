"""Digits, folders, parquet and copies of hub datasets: the right images with the right labels."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from autosparse.data import Data, ImageData, open_data
from autosparse.data.sources import _digits

from .pictures import encoded, image_config, picture, write_parquet


def everything(batches: object) -> tuple[torch.Tensor, torch.Tensor]:
    parts = list(batches.epoch(0))  # type: ignore[attr-defined]
    return torch.cat([x for (x,), _ in parts]), torch.cat([y for _, y in parts])


def pixels(number: int, mode: str = "RGB") -> torch.Tensor:
    """What a picture should look like in a batch."""
    array = torch.from_numpy(np.array(picture(number).convert(mode))).float() / 255
    return array[None] if array.ndim == 2 else array.permute(2, 0, 1)


def check_hub_pictures(data: Data) -> None:
    """Images 20 to 26 to validate on, 0 to 14 to train on."""
    x, y = everything(data.validation)
    assert y.tolist() == [n % 3 for n in range(20, 27)]
    assert x.equal(torch.stack([pixels(n) for n in range(20, 27)]))
    assert data.train.samples == 15
    (x,), y = next(data.train.epoch(0))
    known = {pixels(n).numpy().tobytes(): n % 3 for n in range(15)}
    assert [known[image.contiguous().numpy().tobytes()] for image in x] == y.tolist()


def test_digits_are_all_of_scikit_learns_split_by_class() -> None:
    data = open_data(ImageData(source="digits", batch_size=1, channels=1, classes=10))
    assert data.facts == {
        "source": "digits",
        "training samples": 1347,
        "validation samples": 450,
        "classes": 10,
        "image": "1 x 8 x 8",
    }
    assert data.test is data.validation
    assert data.padding_id is None
    assert data.text is None
    (train, train_labels), (test, test_labels) = everything(data.train), everything(data.validation)
    images, labels = load_digits(return_X_y=True)
    ours = {
        (*(image * 16).flatten().int().tolist(), int(label))
        for image, label in zip(torch.cat([train, test]), torch.cat([train_labels, test_labels]), strict=True)
    }
    assert ours == {(*image.astype(int).tolist(), int(label)) for image, label in zip(images, labels, strict=True)}
    shares = torch.bincount(test_labels) / torch.from_numpy(np.bincount(labels))
    split = train_test_split(np.arange(len(labels)), test_size=450, random_state=0, stratify=labels)
    assert [images.labels.tolist() for images in _digits()] == [labels[part].tolist() for part in split]
    assert (shares - 450 / 1797).abs().max() < 0.01


def test_a_folder_gives_every_class_its_number(jpeg_folder: Path) -> None:
    data = open_data(image_config(source="folder", path=str(jpeg_folder), image_size=24))
    assert (data.train.samples, data.validation.samples, data.facts["image"]) == (21, 9, "3 x 24 x 24")
    x, y = everything(data.validation)
    assert y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with Image.open(jpeg_folder / "val" / "n01443537" / "n01443537_2.JPEG") as image:  # 38x38
        expected = np.array(image.resize((24, 24), Image.Resampling.BILINEAR))
    assert (x[5] * 255).round().byte().permute(1, 2, 0).numpy().tolist() == expected.tolist()


def test_a_folder_under_other_names_with_other_files_beside(jpeg_folder: Path) -> None:
    (jpeg_folder / "train").rename(jpeg_folder / "learn")
    (jpeg_folder / "val").rename(jpeg_folder / "exam [1]")
    (jpeg_folder / "learn" / "n01440764" / "README.txt").write_text("not an image")
    config = image_config(source="folder", path=str(jpeg_folder), image_size=24, train_split="learn", test_split="exam [1]")
    data = open_data(config)
    assert (data.train.samples, data.validation.samples) == (21, 9)


def test_parquet_in_the_hubs_layout(hub_copy: Path, tmp_path: Path) -> None:
    check_hub_pictures(open_data(image_config(source="parquet", path=str(hub_copy)), cache=tmp_path / "cache"))
    assert any((tmp_path / "cache").iterdir())


def test_a_local_copy_of_a_hub_dataset(hub_copy: Path) -> None:
    check_hub_pictures(open_data(image_config(source="hub", hub=str(hub_copy))))


def test_a_dataset_saved_to_disk(hub_copy: Path, tmp_path: Path) -> None:
    datasets.load_dataset(str(hub_copy)).save_to_disk(tmp_path / "saved")
    check_hub_pictures(open_data(image_config(source="hub", hub=str(tmp_path / "saved"))))


def test_a_hub_name_goes_to_datasets_with_its_subset(hub_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, asked = datasets.load_dataset(str(hub_copy)), []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **more: asked.append((names, more)) or whole)
    check_hub_pictures(open_data(image_config(source="hub", hub="someone/animals", subset="small")))
    assert asked == [(("someone/animals",), {"name": "small", "cache_dir": None})]


def test_parquet_without_the_hubs_description(tmp_path: Path) -> None:
    """Plain columns of bytes and numbers under names of their own; test stands in where there is no validation."""
    for split, numbers in (("train", range(6)), ("test", range(6, 10))):
        rows = {
            "id": [f"image {n}" for n in numbers],
            "photo": [encoded(picture(n)) for n in numbers],
            "kind": [n % 3 for n in numbers],
        }
        datasets.Dataset.from_dict(rows).to_parquet(tmp_path / f"{split}.parquet")
    x, y = everything(open_data(image_config(source="parquet", path=str(tmp_path))).validation)
    assert y.tolist() == [0, 1, 2, 0]
    assert x.equal(torch.stack([pixels(n) for n in range(6, 10)]))


def test_the_label_column_with_so_many_classes_is_taken(tmp_path: Path) -> None:
    """CIFAR-100 carries fine and coarse labels."""
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "fine_label": datasets.ClassLabel(num_classes=6),
            "coarse_label": datasets.ClassLabel(num_classes=3),
        }
    )
    rows = {"img": [picture(n) for n in range(6)], "fine_label": list(range(6)), "coarse_label": [n // 2 for n in range(6)]}
    for split in ("train", "test"):
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / f"{split}.parquet")
    for classes, labels in ((6, [0, 1, 2, 3, 4, 5]), (3, [0, 0, 1, 1, 2, 2])):
        data = open_data(image_config(source="parquet", path=str(tmp_path), classes=classes))
        assert everything(data.validation)[1].tolist() == labels
    data = open_data(image_config(source="parquet", path=str(tmp_path), classes=6, label_column="coarse_label"))
    assert everything(data.validation)[1].tolist() == [0, 0, 1, 1, 2, 2]


def test_colours_become_grey_and_grey_becomes_three_channels(hub_copy: Path, tmp_path: Path) -> None:
    x, _ = everything(open_data(image_config(source="parquet", path=str(hub_copy), channels=1)).validation)
    assert x.equal(torch.stack([pixels(n, "L") for n in range(20, 27)]))
    for split in ("train", "validation"):
        for name in ("a", "b"):
            (tmp_path / "grey" / split / name).mkdir(parents=True)
            for mode in ("L", "RGBA", "P", "1"):
                picture(3).convert(mode).save(tmp_path / "grey" / split / name / f"{mode}.png")
    x, _ = everything(open_data(image_config(source="folder", path=str(tmp_path / "grey"), channels=3)).validation)
    one_bit, grey = x[0], x[1]
    assert x.shape == (8, 3, 32, 40)
    assert grey.equal(pixels(3, "L").expand(3, -1, -1))
    assert set(one_bit.unique().tolist()) == {0.0, 1.0}


def test_limits_take_the_first(hub_copy: Path) -> None:
    data = open_data(image_config(source="parquet", path=str(hub_copy), limit=5, limit_test=2))
    assert (data.train.samples, data.train.steps, data.validation.samples) == (5, 1, 2)
    assert everything(data.validation)[0].equal(torch.stack([pixels(20), pixels(21)]))
    digits = open_data(ImageData(source="digits", batch_size=10, classes=10, limit=30, limit_test=7))
    assert (digits.train.samples, digits.train.steps, digits.validation.samples) == (30, 3, 7)
    assert open_data(image_config(source="parquet", path=str(hub_copy), limit=500)).train.samples == 15


def test_large_sets_are_decoded_as_they_are_needed_with_the_same_result(
    hub_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = image_config(source="parquet", path=str(hub_copy), augment="pad-crop-flip")
    kept = open_data(config)
    monkeypatch.setattr("autosparse.data.sources.MEMORY", 0)
    lazy = open_data(config)
    assert type(kept.train.images) is not type(lazy.train.images)  # type: ignore[attr-defined]
    for split in ("train", "validation"):
        (x, y), (x_lazy, y_lazy) = everything(getattr(kept, split)), everything(getattr(lazy, split))
        assert x.equal(x_lazy)
        assert y.equal(y_lazy)


def test_splits_that_begin_alike_are_not_mixed_up(hub_copy: Path) -> None:
    write_parquet(hub_copy / "data" / "training_extra.parquet", range(40, 50))
    write_parquet(hub_copy / "data" / "test-00000-of-00001.parquet", range(30, 34))
    check_hub_pictures(open_data(image_config(source="parquet", path=str(hub_copy))))
    config = image_config(source="parquet", path=str(hub_copy), test_split="test")
    assert open_data(config).validation.samples == 4
