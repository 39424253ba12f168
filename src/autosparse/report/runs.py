"""Runs as reports read them."""

from __future__ import annotations

from pathlib import Path

from autosparse.common.files import read_json
from autosparse.recipes.method_block import DENSE
from autosparse.training.folder import Run, block, number

__all__ = ["DENSE", "Run", "block", "number", "read_run", "read_runs"]

read_run = Run.read


def read_runs(folder: Path) -> list[Run]:
    """The run in a folder; in the folder of a comparison, all of its runs in the order of its table."""
    if (folder / "run.json").is_file() or not folder.is_dir():
        return [read_run(folder)]
    inside = sorted(path.parent for path in folder.glob("*/run.json"))
    if not inside:
        return [read_run(folder)]  # which says what is missing
    table = folder / "table.json"
    order = list(read_json(table).get("runs") or {}) if table.is_file() else []
    places = {name: place for place, name in enumerate(order)}
    inside.sort(key=lambda path: places.get(path.name, len(order)))
    return [read_run(path) for path in inside]
