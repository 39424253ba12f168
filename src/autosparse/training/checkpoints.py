"""Checkpoints of a run: the last, the one before and the best; written whole, checked when read, never unpickled freely."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from autosparse.common.files import whole_file
from autosparse.common.tensors import load_plain
from autosparse.common.warnings import warn

FORMAT, VERSION = "autosparse checkpoint", 1
LAST, PREVIOUS, BEST = "last.pt", "previous.pt", "best.pt"


def save(folder: Path, state: dict[str, Any], *, best: bool = False) -> None:
    """Write the last checkpoint; the one before stays as `previous`, and a full disk leaves both as they were."""
    last = folder / LAST
    for stale in folder.glob(f".{LAST}.*.tmp"):  # of a process that was killed while it wrote
        stale.unlink()
    with _explained(folder), whole_file(last) as unfinished:
        _dump(state, unfinished)
        if last.exists():
            _link(last, folder / PREVIOUS)
    if best:
        _link(last, folder / BEST)


def write(path: Path, state: dict[str, Any]) -> None:
    """A file that is complete on the disk, or an error and no file."""
    with _explained(path.parent), whole_file(path) as unfinished:
        _dump(state, unfinished)


def load(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; a damaged one is named. None where there is none yet."""
    present = [folder / name for name in (LAST, PREVIOUS) if (folder / name).exists()]
    for number, path in enumerate(present):
        try:
            return read(path)
        except ValueError as error:
            if number + 1 == len(present):
                raise
            warn(f"{error}; going back to {present[number + 1].name}")
    return None


def saved_recipe(folder: Path) -> str | None:
    """The recipe as the newest whole checkpoint holds it, also where the model is sharded."""
    for path in (folder / LAST, folder / "last" / "rest.pt", folder / PREVIOUS, folder / "previous" / "rest.pt"):
        try:
            return str(read(path)["recipe"])
        except (ValueError, KeyError):
            continue
    return None


def read(path: Path) -> dict[str, Any]:
    """A checkpoint's content; anything that is not a whole one is refused."""
    if not path.exists():
        raise ValueError(f"there is no checkpoint {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"its part {broken} fails the checksum")
    except Exception as error:  # whatever a damaged archive makes zipfile raise
        raise ValueError(f"the checkpoint {path} is damaged: {str(error).splitlines()[0]}") from error
    state = load_plain(path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of a run")
    if state.get("version") != VERSION:
        raise ValueError(f"{path} has version {state.get('version')}, this release reads {VERSION}")
    return state


def _dump(state: dict[str, Any], path: Path) -> None:
    torch.save({"format": FORMAT, "version": VERSION, **state}, path)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """An error while writing says what was lost, which is nothing, and what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        raise OSError(
            f"the checkpoint could not be written to {folder} ({error}); the one before is untouched: "
            "free some space, then go on with --resume"
        ) from error


def _link(source: Path, target: Path) -> None:
    """A second name for a file that is never written again; a copy where the file system has no links."""
    with whole_file(target) as unfinished:
        unfinished.unlink()
        try:
            os.link(source, unfinished)
        except OSError:
            shutil.copyfile(source, unfinished)
