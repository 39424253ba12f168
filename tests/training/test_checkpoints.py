"""Checkpoints are whole or not there: damage is noticed, a full disk loses nothing."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from autosparse import SparsityWarning
from autosparse.training import checkpoints


def state(number: int) -> dict[str, Any]:
    return {"number": number, "weight": torch.full((1000,), float(number))}


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Writes beyond `size` bytes fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_last_previous_and_best(tmp_path: Path) -> None:
    assert checkpoints.load(tmp_path) is None
    for number in range(3):
        checkpoints.save(tmp_path, state(number), best=number == 1)
    numbers = {name: checkpoints.read(tmp_path / f"{name}.pt")["number"] for name in ("last", "previous", "best")}
    assert numbers == {"last": 2, "previous": 1, "best": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "last.pt", "previous.pt"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_damaged_checkpoint_is_named_and_the_previous_used(tmp_path: Path, damage: str) -> None:
    checkpoints.save(tmp_path, state(1))
    checkpoints.save(tmp_path, state(2))
    last = tmp_path / "last.pt"
    content = bytearray(last.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        place = content.find(torch.full((8,), 2.0).numpy().tobytes())
        assert place > 0
        content[place + 3] ^= 0x40
    else:
        content = bytearray(b"" if damage == "empty" else b"not a checkpoint")
    last.write_bytes(bytes(content))
    with pytest.warns(SparsityWarning, match=r"last.pt is damaged.*going back to previous.pt"):
        found = checkpoints.load(tmp_path)
    assert found is not None
    assert found["number"] == 1


def test_when_both_are_damaged_it_says_so(tmp_path: Path) -> None:
    for number in (1, 2):
        checkpoints.save(tmp_path, state(number))
    for name in ("last.pt", "previous.pt"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.warns(SparsityWarning), pytest.raises(ValueError, match=r"previous.pt is damaged"):
        checkpoints.load(tmp_path)


def test_a_full_disk_leaves_the_old_ones(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, state(1))
    checkpoints.save(tmp_path, state(2))
    with disk_of(1024), pytest.raises(OSError, match="the one before is untouched"):
        checkpoints.save(tmp_path, state(3))
    assert checkpoints.load(tmp_path)["number"] == 2  # type: ignore[index]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "previous.pt"]
    checkpoints.save(tmp_path, state(3))
    assert checkpoints.load(tmp_path)["number"] == 3  # type: ignore[index]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".last.pt.0a1b2c.tmp").write_bytes(b"half")
    checkpoints.save(tmp_path, state(1))
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_nothing_is_unpickled_freely(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "owned"), "w"))

    torch.save({"format": checkpoints.FORMAT, "version": 1, "payload": Hostile()}, tmp_path / "last.pt")
    with pytest.raises(
        ValueError, match=r"last\.pt is damaged, or not a file of autosparse.*nothing in it was executed"
    ) as refused:
        checkpoints.load(tmp_path)
    assert "weights_only" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert not (tmp_path / "owned").exists()


def test_another_version_is_refused(tmp_path: Path) -> None:
    torch.save({"format": checkpoints.FORMAT, "version": 99}, tmp_path / "last.pt")
    with pytest.raises(ValueError, match="version 99, this release reads 1"):
        checkpoints.read(tmp_path / "last.pt")
