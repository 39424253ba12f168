"""Small image datasets in the layouts of the real ones, made on the spot."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest

from .pictures import picture, write_idx, write_parquet


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face's cache of a test is its own, and nothing asks the network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hugging-face")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def jpeg_folder(tmp_path: Path) -> Path:
    """ImageNet's layout: 21 images in train and 9 in val, a folder a class, JPEGs of different sizes."""
    root = tmp_path / "imagenet"
    for split, each in (("train", 7), ("val", 3)):
        for label, name in enumerate(("n01440764", "n01443537", "n02085936")):
            (root / split / name).mkdir(parents=True)
            for number in range(each):
                size = (30 + 4 * number, 44 - 3 * number)
                picture(100 * label + number, size).save(root / split / name / f"{name}_{number}.JPEG", quality=90)
    return root


@pytest.fixture
def hub_copy(tmp_path: Path) -> Path:
    """A dataset of the hub as its files: 15 training images in two shards, 7 validation images, 40x32."""
    root = tmp_path / "hub-copy"
    write_parquet(root / "data" / "train-00000-of-00002.parquet", range(8))
    write_parquet(root / "data" / "train-00001-of-00002.parquet", range(8, 15))
    write_parquet(root / "data" / "validation-00000-of-00001.parquet", range(20, 27))
    return root


@pytest.fixture
def idx_folder(tmp_path: Path) -> Path:
    """MNIST's four files with 10 training and 5 test images of 3x4 whose pixel values count up; training files gzipped."""
    root = tmp_path / "mnist"
    root.mkdir()
    for split, count, ending in (("train", 10, ".gz"), ("t10k", 5, "")):
        write_idx(root / f"{split}-images-idx3-ubyte{ending}", np.arange(count * 12, dtype=np.uint8).reshape(count, 3, 4))
        write_idx(root / f"{split}-labels-idx1-ubyte{ending}", (np.arange(count) % 3).astype(np.uint8))
    return root
