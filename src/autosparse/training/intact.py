"""Whether the files of a run are as it wrote them, by sizes and checksums that run.json notes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors

from autosparse.common.files import read_json, read_text
from autosparse.recipes.yaml_text import read_block

Note = dict[str, Any]


def note(path: Path) -> Note:
    """What a file is recognised by: its size and checksum; a recipe, which people edit, by its last line."""
    if path.suffix == ".yaml":
        return {"last_line": read_text(path).splitlines()[-1]}
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def notes_of(paths: Iterable[Path]) -> dict[str, Note]:
    """The notes of the files that are there."""
    return {path.name: note(path) for path in paths if path.is_file()}


def fault(path: Path, noted: Mapping[str, Any] | None) -> str | None:
    """What is wrong with a file, in a few words; None if nothing is. Where nothing is noted, its form alone counts."""
    if not path.is_file():
        return f"{path.name} is missing"
    if not path.stat().st_size and (noted is None or noted.get("bytes") != 0):
        return f"{path.name} is empty"
    try:
        _check_form(path)
        if noted is not None and note(path) != noted:
            return f"{path.name} is not as the run wrote it"
    except (ValueError, OSError, safetensors.SafetensorError) as error:
        return f"{path.name} is damaged: {' '.join(str(error).removeprefix(f'{path} is damaged: ').split())}"
    return None


def _check_form(path: Path) -> None:
    if path.suffix == ".json":
        read_json(path)
    elif path.suffix == ".yaml":
        read_block(read_text(path), path.name)
    elif path.suffix == ".safetensors":
        with safetensors.safe_open(str(path), "pt"):
            pass
