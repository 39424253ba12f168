"""`autosparse compare`: a grid of runs, then one table in the columns of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from autosparse.common.tables import Table
from autosparse.common.words import counted
from autosparse.data.config import AnyData
from autosparse.experiments.grid import Cell, Row
from autosparse.experiments.method_fields import sparsity_field
from autosparse.experiments.runner import Outcome
from autosparse.experiments.tables import Summary, failures, results, shown, summarise, with_failures, write_table
from autosparse.recipes.method_block import DENSE
from autosparse.recipes.recipe import Recipe

SPREAD = ": mean ± standard deviation (n - 1)"


def steps_counter() -> Callable[[Recipe], int]:
    """Steps per epoch of a recipe; data that was opened is not opened again."""

    @cache
    def count(data: AnyData) -> int:
        from autosparse.data import open_data

        return open_data(data).train.steps

    return lambda recipe: count(recipe.data)


def cells_of(rows: Sequence[Row]) -> list[Cell]:
    """Every run of the rows once, dense ones first."""
    return list({cell.name: cell for row in rows for cell in row.cells}.values())


def plain_rows(rows: Sequence[Row], outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """The rows as plain numbers, for JSON and CSV."""
    return [
        {
            "method": row.method,
            "asked_sparsity": row.sparsity,
            **dict(row.varied),
            **asdict(_summary(row, outcomes)),
            "failed": "; ".join(failures(row.cells, outcomes)),
        }
        for row in rows
    ]


def table_of(rows: Sequence[Row], outcomes: Mapping[str, Outcome], recipe: Recipe) -> Table:
    """The table for people."""
    paths = list(dict.fromkeys(path for row in rows for path, _ in row.varied))
    columns = (*(path.rpartition(".")[2] for path in paths), "Base", measure_name(recipe), "Drop %", "S %", "Train F", "Test F")
    lines = [_line(row, paths, _summary(row, outcomes)) for row in rows]
    table = Table(("method", "asked", *columns, "seconds"), lines, None, f"{recipe.name}: comparison", _notes(rows, recipe))
    return with_failures(table, [row.cells for row in rows], outcomes)


def _line(row: Row, paths: Sequence[str], summary: Summary) -> tuple[str, ...]:
    asked = f"{100 * row.sparsity:g} %" if row.sparsity is not None else ""
    varied = {path: str(value) for path, value in row.varied}
    base, *rest = summary.cells()
    figures = [""] * len(rest) if row.method == DENSE else rest
    return (row.method, asked, *(varied.get(path, "") for path in paths), base, *figures, shown(summary.seconds, 1))


def measure_name(recipe: Recipe) -> str:
    """What the accuracy of this recipe's runs is."""
    return "Token accuracy (S)" if recipe.data.kind == "translation" else "Top1(S)"


def write_tables(rows: Sequence[Row], outcomes: Mapping[str, Outcome], recipe: Recipe, folder: Path) -> Table:
    """table.md, table.csv and table.json; the table as it was written."""
    table = table_of(rows, outcomes, recipe)
    runs = {name: {"status": outcome.status, "message": outcome.message} for name, outcome in outcomes.items()}
    write_table(folder / "table", table, plain_rows(rows, outcomes), {"recipe": recipe.model_dump(mode="json"), "runs": runs})
    return table


def _summary(row: Row, outcomes: Mapping[str, Outcome]) -> Summary:
    return summarise(results(row.cells, outcomes), results(row.bases, outcomes))


def _notes(rows: Sequence[Row], recipe: Recipe) -> list[str]:
    seeds = len(rows[0].cells)
    notes = [
        f"{counted(recipe.train.epochs, 'epoch')}, {counted(seeds, 'seed')}{SPREAD if seeds > 1 else ''}; "
        "on the validation data after the last epoch.",
        "Drop % = 100 (Base - sparse) / Base. S %: zeros among the weights the method works on. Train F and Test F: training "
        "and inference FLOPs as fractions of the dense run, counted.",
    ]
    learned = sorted({row.method for row in rows if row.method != DENSE and sparsity_field(row.method) is None})
    if learned:
        notes.append(
            f"{', '.join(learned)}: learn how sparse they become from a penalty, so the asked sparsity does not reach them."
        )
    return notes
