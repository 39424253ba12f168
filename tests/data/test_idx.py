"""MNIST's files: what is read, and what is said of files that are not whole."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from autosparse.data import open_data
from autosparse.data.idx import read_idx

from .pictures import image_config, write_idx


def test_plain_and_gzipped_files_give_their_numbers(idx_folder: Path) -> None:
    data = open_data(image_config(source="idx", path=str(idx_folder), channels=1, mean=(0.5,), std=(0.25,)))
    assert (data.train.samples, data.validation.samples) == (10, 5)
    (x,), y = next(data.validation.epoch(0))
    assert x.shape == (4, 1, 3, 4)
    assert y.tolist() == [0, 1, 2, 0]
    assert x[2, 0, 1, 3].item() == pytest.approx((31 / 255 - 0.5) / 0.25)  # 2 images of 12, a row of 4, and 3 more


def test_grey_files_fill_three_channels_when_asked(idx_folder: Path) -> None:
    data = open_data(image_config(source="idx", path=str(idx_folder), channels=3, mean=(0.0, 0.5, 0.0)))
    (x,), _ = next(data.validation.epoch(0))
    assert x.shape == (4, 3, 3, 4)
    assert x[:, 0].equal(x[:, 2])
    assert (x[:, 0] - 0.5).equal(x[:, 1])


def test_names_with_a_point_and_other_splits_are_found(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_idx(tmp_path / f"{split}-images.idx3-ubyte", np.full((4, 2, 2), 7, np.uint8))
        write_idx(tmp_path / f"{split}-labels.idx1-ubyte", np.array([0, 1, 2, 0], np.uint8))
    assert open_data(image_config(source="idx", path=str(tmp_path), test_split="test")).validation.samples == 4


def test_missing_files_are_named(idx_folder: Path, tmp_path: Path) -> None:
    (idx_folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"no t10k labels in .*: looked for t10k-labels-idx1-ubyte, t10k-labels-idx1-ubyte\.gz"
    ):
        open_data(image_config(source="idx", path=str(idx_folder)))
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a folder; .*train-images-idx3-ubyte\.gz"):
        open_data(image_config(source="idx", path=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing"),
        (
            b"\x00\x00\x08\x01\x00\x00\x00\x02ab",
            "begins with 00 00 08 01; an idx file of bytes in 3 dimensions begins with 00 00 08 03",
        ),
        (b"\x00\x00\x0d\x03" + bytes(12), "begins with 00 00 0d 03"),
        (b"\x00\x00\x08\x03\x00\x00", "and 3 sizes"),
        (b"\x00\x00\x08\x03" + 3 * b"\x00\x00\x00\x02" + bytes(7), r"promises \[2, 2, 2\] = 8 bytes but holds 7"),
        (b"\x00\x00\x08\x03" + 3 * b"\x00\x00\x00\x00", "is empty"),
    ],
)
def test_headers_are_checked(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(path, 3)


@pytest.mark.parametrize("damage", ["cut", "other", "flipped"])
def test_damaged_gzip_files_are_named(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(bytes(range(256)) * 40)
    flipped = whole[:20] + bytes(255 - byte for byte in whole[20:40]) + whole[40:]
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes({"cut": whole[:-20], "other": b"<html>not found</html>", "flipped": flipped}[damage])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is not a whole gzip file"):
        read_idx(path, 3)


def test_files_that_do_not_belong_together_are_refused(idx_folder: Path) -> None:
    write_idx(idx_folder / "t10k-labels-idx1-ubyte", np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="5 t10k images but 4 labels"):
        open_data(image_config(source="idx", path=str(idx_folder)))
    write_idx(idx_folder / "t10k-labels-idx1-ubyte", np.zeros(5, np.uint8))
    write_idx(idx_folder / "t10k-images-idx3-ubyte", np.zeros((5, 4, 4), np.uint8))
    with pytest.raises(ValueError, match="training images are 3x4 but the others 4x4"):
        open_data(image_config(source="idx", path=str(idx_folder)))


def test_what_small_images_cannot_do_is_said(idx_folder: Path) -> None:
    with pytest.raises(ValueError, match="image_size = 28, but the images of source: idx are 3x4"):
        open_data(image_config(source="idx", path=str(idx_folder), image_size=28))
    with pytest.raises(ValueError, match="resized-crop-flip is for image files; source: idx takes pad-crop-flip"):
        open_data(image_config(source="idx", path=str(idx_folder), image_size=28, augment="resized-crop-flip"))
    with pytest.raises(ValueError, match=r"training labels run from 0 to 2, but data\.classes = 2 allows 0 to 1"):
        open_data(image_config(source="idx", path=str(idx_folder), classes=2))
