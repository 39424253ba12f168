"""Data is recognised by its size, its labels and a sample of its items, wherever it lies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from autosparse.data import ImageData, TranslationData, open_data
from autosparse.data.fingerprint import digest, sampled


def folder_of_images(root: Path, shade: int, name: str = "image") -> Path:
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            (root / split / label).mkdir(parents=True)
            for number in range(3):
                pixels = np.full((4, 4), 40 * number + (shade if split == "train" else 0), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / label / f"{name}{number}.png")
    return root


def images(path: Path, **changes: Any) -> dict[str, str]:
    block = {"source": "folder", "path": str(path), "batch_size": 2, "channels": 1, "classes": 2, **changes}
    return open_data(ImageData.model_validate(block)).fingerprint


def test_other_images_of_the_same_number_and_size_differ(tmp_path: Path) -> None:
    first = images(folder_of_images(tmp_path / "a", 0))
    assert images(Path(shutil.copytree(tmp_path / "a", tmp_path / "moved"))) == first
    other = images(folder_of_images(tmp_path / "b", 1))
    assert other["training"] != first["training"]
    assert other["validation"] == first["validation"]
    assert images(folder_of_images(tmp_path / "c", 0, "picture"))["training"] != first["training"]


def test_images_that_are_not_kept_in_memory_have_the_same_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder_of_images(tmp_path / "a", 0)
    kept = images(path)
    monkeypatch.setattr("autosparse.data.sources.MEMORY", 0)
    assert images(path) == kept


def test_the_digits_are_always_the_same() -> None:
    block = {"source": "digits", "batch_size": 32, "channels": 1, "classes": 10}
    first, second, fewer = (
        open_data(ImageData.model_validate({**block, **changes}), seed=seed).fingerprint
        for seed, changes in ((0, {}), (1, {}), (0, {"limit": 100}))
    )
    assert first == second
    assert fewer["training"] != first["training"]
    assert fewer["validation"] == first["validation"]


def test_other_sentences_of_the_same_number_differ(tmp_path: Path) -> None:
    fingerprints = []
    for name, word in (("a", "river"), ("b", "water")):
        folder = tmp_path / name
        folder.mkdir()
        for split in ("train", "validation", "test"):
            for language in ("en", "de"):
                lines = [f"the {word if split == 'train' else 'house'} number {number}" for number in range(20)]
                (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n")
        block = {"kind": "translation", "source": "files", "path": str(folder), "tokens_per_batch": 64, "vocabulary": 300}
        fingerprints.append(open_data(TranslationData.model_validate(block), cache=tmp_path / "cache").fingerprint)
    assert fingerprints[0]["training"] != fingerprints[1]["training"]
    assert set(fingerprints[0]) == {"training", "validation", "test"}


def test_a_sample_is_spread_over_all_items() -> None:
    assert sampled(3).tolist() == [0, 1, 2]
    assert len(sampled(10**6)) == 64
    assert sampled(10**6)[[0, -1]].tolist() == [0, 10**6 - 1]


def test_parts_do_not_run_together() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
