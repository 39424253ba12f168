"""Image data that is missing, damaged or of another kind: the error says what was looked for and what to do."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from autosparse.common.warnings import SparsityWarning
from autosparse.data import open_data

from .pictures import encoded, image_config, picture, write_parquet


def write_table(folder: Path, columns: dict[str, list[Any]], features: datasets.Features | None = None) -> Path:
    """The same rows as train and validation parquet."""
    for split in ("train", "validation"):
        datasets.Dataset.from_dict(columns, features=features).to_parquet(folder / f"{split}.parquet")
    return folder


def photos(count: int = 4) -> list[bytes]:
    return [encoded(picture(n)) for n in range(count)]


@pytest.mark.parametrize("source", ["folder", "parquet"])
def test_a_path_that_is_not_there(source: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"nowhere is not a folder; source: {source} needs one"):
        open_data(image_config(source=source, path=str(tmp_path / "nowhere")))


def test_folders_without_a_split(jpeg_folder: Path) -> None:
    shutil.rmtree(jpeg_folder / "val")
    with pytest.raises(FileNotFoundError, match=r"no folder learn-more in .*imagenet"):
        open_data(image_config(source="folder", path=str(jpeg_folder), test_split="learn-more"))
    with pytest.warns(SparsityWarning, match="validate on: 3 of 21 are held out, a tenth of each of 3 classes"):
        open_data(image_config(source="folder", path=str(jpeg_folder), image_size=16))
    with pytest.raises(FileNotFoundError, match=r"no folder learn in .*imagenet"):
        open_data(image_config(source="folder", path=str(jpeg_folder), train_split="learn"))


def test_folders_without_classes(jpeg_folder: Path) -> None:
    """ImageNet's validation images as they come: all in one folder."""
    for image in list((jpeg_folder / "val").glob("*/*")):
        image.rename(jpeg_folder / "val" / image.name)
    for folder in list((jpeg_folder / "val").glob("n*/")):
        if folder.is_dir():
            folder.rmdir()
    with pytest.raises(FileNotFoundError, match=r"no images in .*val: looked for CLASS/\*\.jpg"):
        open_data(image_config(source="folder", path=str(jpeg_folder), image_size=16))
    for folder in ("n01443537", "n02085936"):
        shutil.rmtree(jpeg_folder / "train" / folder)
    with pytest.raises(ValueError, match="train holds 1 class folders"):
        open_data(image_config(source="folder", path=str(jpeg_folder), image_size=16))


def test_a_class_that_only_validation_has(jpeg_folder: Path) -> None:
    (jpeg_folder / "val" / "n09999999").mkdir()
    with pytest.raises(ValueError, match="val holds classes that the training images lack: n09999999"):
        open_data(image_config(source="folder", path=str(jpeg_folder), image_size=16))


def test_parquet_files_under_other_names(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no train\*\.parquet in .*; there are: no parquet files"):
        open_data(image_config(source="parquet", path=str(tmp_path)))
    write_parquet(tmp_path / "train.parquet", range(4))
    with pytest.raises(FileNotFoundError, match=r"no validation\*\.parquet, val\*\.parquet, .*there are: train\.parquet"):
        open_data(image_config(source="parquet", path=str(tmp_path)))


def test_a_parquet_file_that_is_none(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", range(4))
    (tmp_path / "test.parquet").write_bytes(b"<html>not found</html>")
    with pytest.raises(OSError, match=r"cannot open .*test\.parquet.* with datasets: [^\n]+$"):
        open_data(image_config(source="parquet", path=str(tmp_path)))


def test_columns_that_cannot_be_told(tmp_path: Path) -> None:
    photo = photos()
    labels = [0, 1, 2, 0]
    path = str(write_table(tmp_path, {"left": photo, "right": photo, "label": labels, "other": labels}))
    with pytest.raises(ValueError, match=r"left, right all fit of left, right, label, other; set data\.image_column"):
        open_data(image_config(source="parquet", path=path))
    assert open_data(image_config(source="parquet", path=path, image_column="left")).train.samples == 4
    with pytest.raises(ValueError, match=r"image_column: middle does not exist; the columns are left, right, label, other"):
        open_data(image_config(source="parquet", path=path, image_column="middle"))
    with pytest.raises(ValueError, match=r"data\.label_column: right holds .*; labels are whole numbers from 0"):
        open_data(image_config(source="parquet", path=path, image_column="left", label_column="right"))


def test_tables_without_images_or_labels(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    path = str(write_table(tmp_path / "text", {"text": ["a", "b"], "label": [0, 1]}))
    with pytest.raises(ValueError, match=r"none fits of text, label; set data\.image_column"):
        open_data(image_config(source="parquet", path=path))
    (tmp_path / "words").mkdir()
    path = str(write_table(tmp_path / "words", {"image": photos(2), "label": ["cat", "dog"]}))
    with pytest.raises(ValueError, match=r"none fits of image, label; set data\.label_column"):
        open_data(image_config(source="parquet", path=path))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2, 3], r"training labels run from 0 to 3, but data\.classes = 3 allows 0 to 2$"),
        ([-1, -1, -1, -1], r"allows 0 to 2 \(-1 stands for a hidden label: set data\.test_split"),
        ([0, None, 1, 2], "column label of train has gaps"),
    ],
)
def test_labels_that_are_no_classes(tmp_path: Path, labels: list[int | None], message: str) -> None:
    path = str(write_table(tmp_path, {"image": photos(), "label": labels}))
    with pytest.raises(ValueError, match=message):
        open_data(image_config(source="parquet", path=path))


def test_images_of_different_sizes_need_a_size(jpeg_folder: Path) -> None:
    with pytest.raises(
        ValueError, match=r"image 1 of train is 41x34 \(height x width\) but the first is 44x30; give data\.image_size"
    ):
        open_data(image_config(source="folder", path=str(jpeg_folder)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_named_in_one_line(jpeg_folder: Path, workers: int) -> None:
    broken = jpeg_folder / "train" / "n01443537" / "n01443537_3.JPEG"
    broken.write_bytes(broken.read_bytes()[:300])
    config = image_config(source="folder", path=str(jpeg_folder), image_size=16, augment="resized-crop-flip", workers=workers)
    data = open_data(config)
    with pytest.raises(ValueError, match=r"^image 10 of train \(.*n01443537_3\.JPEG\) cannot be read: [^\n]+$"):
        list(data.train.epoch(0)) + list(data.train.epoch(1))


def test_an_empty_cell_is_named(tmp_path: Path) -> None:
    path = str(write_table(tmp_path, {"image": [*photos(3), None], "label": [0, 1, 2, 0]}))
    with pytest.raises(ValueError, match="image 3 of train cannot be read: the cell is empty"):
        open_data(image_config(source="parquet", path=path))


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'someone/animals' on the Hub\nwith a long story")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        OSError, match=r"cannot open someone/animals with datasets: Couldn't reach 'someone/animals' on the Hub$"
    ):
        open_data(image_config(source="hub", hub="someone/animals"))


def test_a_hub_dataset_without_the_split(hub_copy: Path) -> None:
    with pytest.raises(ValueError, match="hub-copy has no split exam; it has train, validation"):
        open_data(image_config(source="hub", hub=str(hub_copy), test_split="exam"))


def test_more_processes_than_images_and_batches_that_do_not_split(hub_copy: Path) -> None:
    config = image_config(source="parquet", path=str(hub_copy))
    with pytest.raises(ValueError, match="16 processes for 15 training samples"):
        open_data(config, world=16)
    with pytest.raises(ValueError, match="8 processes for 7 validation samples"):
        open_data(config, world=8)
    with pytest.raises(ValueError, match="batch_size = 4 does not split over 3 processes"):
        open_data(config, world=3)
    with pytest.raises(ValueError, match="batch_size = 16, but there are only 15 training samples"):
        open_data(image_config(source="parquet", path=str(hub_copy), batch_size=16))


@pytest.mark.parametrize(("module", "source"), [("datasets", "parquet"), ("PIL", "parquet")])
def test_a_package_that_is_not_installed(module: str, source: str, hub_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    place = {"path": str(hub_copy)} if source == "parquet" else {}
    with pytest.raises(RuntimeError, match=rf'needs the package {module}.*: pip install "autosparse\[data\]"'):
        open_data(image_config(source=source, classes=10, **place))
