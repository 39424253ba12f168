"""What became of the runs of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosparse.experiments.cells import Cell
from autosparse.experiments.runner import Outcome


def results(cells: Sequence[Cell], outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """The results of the runs that were finished."""
    found = [outcomes[cell.name].result for cell in cells if cell.name in outcomes]
    return [result for result in found if result is not None]


def failures(cells: Sequence[Cell], outcomes: Mapping[str, Outcome]) -> list[str]:
    """Why the others failed, each reason once."""
    failed = [outcomes[cell.name].message for cell in cells if cell.name in outcomes and outcomes[cell.name].status == "failed"]
    return list(dict.fromkeys(failed))
