"""metrics.jsonl: the figures of a run, one line per epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autosparse.common.files import kind_of, read_text

LISTS = ("densities", "thresholds")


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The lines by epoch, and whether the last was cut; a resumed run writes an epoch again, and the later line counts."""
    lines = read_text(path).splitlines(keepends=True) if path.exists() else []
    is_cut = bool(lines) and not lines[-1].endswith("\n") and not _is_json(lines[-1])  # the run was killed as it wrote it
    if is_cut:
        lines.pop()
    return _by_epoch(
        [_entry(line, f"{path}, line {place}") for place, line in enumerate(lines, start=1) if line.strip()]
    ), is_cut


def undamaged_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines that can be read, whatever happened to the others."""
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            entries.append(_entry(line, str(path)))
        except ValueError:
            continue
    return _by_epoch(entries)


def _by_epoch(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_epoch = {entry["epoch"]: entry for entry in entries}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    except RecursionError:  # damaged, but not cut
        return True
    return True


def _entry(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is damaged: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError(f"{where} is damaged: its lists are nested too deeply") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("epoch"), int):
        raise ValueError(f"{where} is damaged: it has no whole number `epoch`")
    for key, value in entry.items():
        if key in LISTS and value is not None:
            if not isinstance(value, list) or any(not isinstance(item, int | float | None) for item in value):
                raise ValueError(f"{where} is damaged: {key} must be a list of numbers")
        elif key in ("loss", "accuracy", "sparsity", "alpha") and isinstance(value, str | list | dict):
            raise ValueError(f"{where} is damaged: {key} is {kind_of(value)}, not a number")
    return entry
