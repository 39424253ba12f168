"""Files that appear whole or not at all, synced to the disk, and replace others only on request; and JSON read back."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole_file(path: Path, force: bool = True) -> Iterator[Path]:
    """A temporary name to write to; the file takes its real name once its content has reached the disk.

    The temporary name is random and created exclusively, so that no link planted under it can be followed. Without `force`
    an existing file is refused, also one that appeared during the work.
    """
    refuse_existing(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _beside(path)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        mode = unfinished.stat().st_mode
        yield unfinished
        unfinished.chmod(mode)  # some writers create files that only their owner may read
        sync(unfinished)
        refuse_existing(path, force)
        os.replace(unfinished, path)
        sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> Path:
    """Write or replace a file atomically; returns its path."""
    with whole_file(path) as unfinished:
        unfinished.write_bytes(content)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write or replace a text file atomically; returns its path."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, content: Any) -> Path:
    """Write or replace a JSON file atomically; NaN and infinity are refused."""
    return write_text(path, json.dumps(content, indent=1, allow_nan=False, default=plain_value) + "\n")


def plain_value(value: Any) -> Any:
    """Paths, arrays and tensors as JSON can store them."""
    if isinstance(value, os.PathLike):
        return str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} does not go into JSON")


def read_text(path: Path) -> str:
    """A text file; one that holds something else is named as damaged."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: it is not text ({error.reason} at byte {error.start})") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds one object; anything else is named as damaged."""
    try:
        content = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds {kind_of(content)}, not an object")
    return content


def kind_of(value: Any) -> str:
    """What a value of JSON or YAML is, for an error message."""
    return {dict: "an object", list: "a list", str: "a text", type(None): "nothing"}.get(type(value), repr(value))


@contextmanager
def whole_folder(path: Path, force: bool) -> Iterator[Path]:
    """A temporary folder whose files then move to `path`; with force they replace those of the same name, others stay."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; give the name of a folder")
    if path.is_dir() and any(path.iterdir()) and not force:
        raise ValueError(f"{path} exists already and is not empty: give another name, or replace it with --force (force=True)")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _beside(path)
    unfinished.mkdir()
    try:
        yield unfinished
        path.mkdir(exist_ok=True)
        for file in sorted(unfinished.iterdir()):
            sync(file)
            os.replace(file, path / file.name)
        sync(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def refuse_existing(path: Path, force: bool) -> None:
    """Before any work: an existing file stays, unless the user says otherwise."""
    if path.is_dir() and not path.is_symlink():
        raise ValueError(f"{path} is a folder; give the name of a file")
    if path.exists() and not force:
        raise ValueError(f"{path} exists already: give another name, or replace it with --force (force=True)")


def is_unfinished(path: Path) -> bool:
    """Whether this is a temporary name of ours, which a process that was killed has left behind."""
    return re.fullmatch(r"\..+\.[0-9a-f]{12}\.tmp", path.name) is not None


def refuse_unwritable(path: Path) -> None:
    """Before any work: a place where nothing can be written is refused; what is missing of it is not made yet."""
    folder = path if path.is_dir() else path.parent
    while not os.path.exists(folder):
        folder = folder.parent
    trial = _beside(folder / "trial")
    try:
        trial.mkdir()  # asking for permissions is not enough: root has them in /proc, too
        trial.rmdir()
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {folder} takes no new files ({error.strerror}); "
            "give a place with --out where you may write"
        ) from None


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def sync(path: Path) -> None:
    """Wait until the file, or the entries of a folder, are on the disk; not every system can open a folder."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
