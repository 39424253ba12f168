"""Checkpoints of a run: the last, the one before and the best; written whole, checked when read, never unpickled freely."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from autosparse.common.warnings import warn

FORMAT, VERSION = "autosparse checkpoint", 1
LAST, PREVIOUS, BEST = "last.pt", "previous.pt", "best.pt"


def save(folder: Path, state: dict[str, Any], *, best: bool = False) -> None:
    """Write the last checkpoint; the one before stays as `previous`, and a full disk leaves both as they were."""
    last = folder / LAST
    write(last.with_name(f".{LAST}.tmp"), state)
    if last.exists():
        _link(last, folder / PREVIOUS)
    os.replace(last.with_name(f".{LAST}.tmp"), last)
    if best:
        _link(last, folder / BEST)


def write(path: Path, state: dict[str, Any]) -> None:
    """A file that is complete on the disk, or an error and no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            torch.save({"format": FORMAT, "version": VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        path.unlink(missing_ok=True)
        raise OSError(
            f"the checkpoint could not be written to {path.parent} ({error}); the one before is untouched: "
            "free some space, then go on with --resume"
        ) from error


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


def read(path: Path) -> dict[str, Any]:
    """A checkpoint's content; anything that is not a whole one is refused."""
    if not path.exists():
        raise ValueError(f"there is no checkpoint {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"its part {broken} fails the checksum")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged archive makes zipfile or torch raise
        raise ValueError(f"the checkpoint {path} is damaged: {str(error).splitlines()[0]}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of a run")
    if state["version"] != VERSION:
        raise ValueError(f"{path} has version {state['version']}, this release reads {VERSION}")
    return state


def _link(source: Path, target: Path) -> None:
    """A second name for a file that is never written again; a copy where the file system has no links."""
    unfinished = target.with_name(f".{target.name}.tmp")
    unfinished.unlink(missing_ok=True)
    try:
        os.link(source, unfinished)
    except OSError:
        unfinished.write_bytes(source.read_bytes())
    os.replace(unfinished, target)
