"""Files that appear whole or not at all, and never over another one unasked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def refuse_existing(path: Path, force: bool) -> None:
    """Before any work: what is there stays, unless the user says otherwise."""
    if path.is_dir() and not path.is_symlink():
        raise ValueError(f"{path} is a folder; give the name of a file")
    if path.exists() and not force:
        raise ValueError(f"{path} exists already: give another name, or replace it with --force (force=True)")


@contextmanager
def whole_file(path: Path, force: bool) -> Iterator[Path]:
    """A name to write to; the file takes its own name once it is complete on the disk."""
    refuse_existing(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.touch()
        mode = unfinished.stat().st_mode
        yield unfinished
        unfinished.chmod(mode)  # safetensors makes files that their owner alone may read
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        refuse_existing(path, force)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, force: bool) -> Iterator[Path]:
    """The same for a folder of files; with force they replace those of the same name, others stay."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; give the name of a folder")
    if path.is_dir() and any(path.iterdir()) and not force:
        raise ValueError(f"{path} exists already and is not empty: give another name, or replace it with --force (force=True)")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        yield unfinished
        path.mkdir(exist_ok=True)
        for file in sorted(unfinished.iterdir()):
            os.replace(file, path / file.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
