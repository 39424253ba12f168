"""Files on which a reader once failed in words that were not ours."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from .files import Target, targets

DEEP = b"[" * 100_000


def checkpoint_without_version() -> bytes:
    buffer = io.BytesIO()
    torch.save({"format": "autosparse checkpoint"}, buffer)
    return buffer.getvalue()


FOUND = [
    ("a run's run.json", b'{"format": "autosparse run", "version": 1, "status": []}', "status"),
    ("a run's metrics", DEEP + b"\n", "nested too deeply"),
    ("a stopped run's metrics", DEEP + b"\n", "nested too deeply"),
    ("a checkpoint", checkpoint_without_version(), "version None"),
    ("reference losses", DEEP, "is not JSON"),
    ("a hub folder's config", b'{"model": "small_conv", "arguments": {"width": []}}', "does not describe a model"),
    ("a hub folder's config", b'{"model": "small_conv", "arguments": {"depth": 3}}', "no argument 'depth'"),
    ("a hub folder's config", b'{"model": "small_conv", "arguments": {"name": 3}}', "does not describe a model"),
]


@pytest.mark.parametrize(
    ("name", "data", "because"), FOUND, ids=[f"{name} {number}" for number, (name, _, _) in enumerate(FOUND)]
)
def test_found(name: str, data: bytes, because: str, tmp_path: Path) -> None:
    target = next(target for target in targets(tmp_path) if target.name == name)
    refused(target, tmp_path / "folder", data, because)


def test_a_run_whose_recipe_gives_the_model_an_unknown_argument(tmp_path: Path) -> None:
    target = next(target for target in targets(tmp_path) if target.name == "a run's recipe")
    text = target.prepare(tmp_path / "folder").read_bytes().replace(b"    width: 2\n", b"    depth: 2\n")
    refused(target, tmp_path / "folder", text, "no argument 'depth'")


def refused(target: Target, folder: Path, data: bytes, because: str) -> None:
    target.prepare(folder).write_bytes(data)
    with pytest.raises(ValueError, match=because):
        target.read(folder)
