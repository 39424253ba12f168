"""`autosparse compare`: a grid of runs, then one table in the columns of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from autosparse.data.config import ImageData, TranslationData
from autosparse.experiments import tables
from autosparse.experiments.cells import Cell, Row
from autosparse.experiments.methods import sparsity_field
from autosparse.experiments.progress import progress
from autosparse.experiments.results import failures, results
from autosparse.experiments.runner import Outcome, run_cells
from autosparse.experiments.summaries import Summary, summarise
from autosparse.experiments.tables import Table
from autosparse.recipes.method_block import DENSE
from autosparse.recipes.recipe import Recipe
from autosparse.training.folder import write_text

FILES = ("table.md", "table.csv", "table.json")


def steps_counter() -> Callable[[Recipe], int]:
    """Steps an epoch of a recipe; data that was opened is not opened again."""

    @cache
    def count(data: ImageData | TranslationData) -> int:
        from autosparse.data import open_data

        return open_data(data).train.steps

    return lambda recipe: count(recipe.data)


def cells_of(rows: Sequence[Row]) -> list[Cell]:
    """Every run of the rows once, dense ones first."""
    return list({cell.name: cell for row in rows for cell in row.cells}.values())


def compare(rows: Sequence[Row], folder: Path, jobs: int | None = None) -> dict[str, Outcome]:
    """Run the grid and leave the table in the folder; what became of every run, by its name."""
    cells = cells_of(rows)
    with progress(len(cells)) as listen:
        return run_cells(cells, folder, jobs, listen)


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
    failed = any(failures(row.cells, outcomes) for row in rows)
    headings = ("method", "asked", *(path.rpartition(".")[2] for path in paths), "Base", measure_name(recipe), "Drop %", "S %")
    lines = []
    for row in rows:
        varied = dict(row.varied)
        summary = _summary(row, outcomes)
        cells = list(tables.summary_cells(summary))
        if row.method == DENSE:
            cells[1:] = [""] * (len(cells) - 1)
        asked = f"{100 * row.sparsity:g} %" if row.sparsity is not None else ""
        lines.append(
            (
                row.method,
                asked,
                *(str(varied[path]) if path in varied else "" for path in paths),
                *cells,
                tables.shown(summary.seconds, 1),
                *(
                    ["FAILED: " + "; ".join(failures(row.cells, outcomes)) if failures(row.cells, outcomes) else ""]
                    if failed
                    else []
                ),
            )
        )
    last = ("Train F", "Test F", "seconds", *(("message",) if failed else ()))
    return Table(f"{recipe.name}: comparison", (*headings, *last), tuple(lines), tuple(_notes(rows, recipe)))


def measure_name(recipe: Recipe) -> str:
    """What the accuracy of this recipe's runs is."""
    return "Top1(S)" if recipe.data.kind == "images" else "Token accuracy (S)"


def write_tables(rows: Sequence[Row], outcomes: Mapping[str, Outcome], recipe: Recipe, folder: Path) -> Table:
    """table.md, table.csv and table.json; the table as it was written."""
    table, plain = table_of(rows, outcomes, recipe), plain_rows(rows, outcomes)
    runs = {name: {"status": outcome.status, "message": outcome.message} for name, outcome in outcomes.items()}
    content = {"recipe": recipe.model_dump(mode="json"), "rows": plain, "runs": runs, "notes": list(table.notes)}
    for name, text in zip(FILES, (tables.markdown(table), tables.comma_separated(plain), tables.as_json(content)), strict=True):
        write_text(folder / name, text)
    return table


def _summary(row: Row, outcomes: Mapping[str, Outcome]) -> Summary:
    return summarise(results(row.cells, outcomes), results(row.bases, outcomes))


def _notes(rows: Sequence[Row], recipe: Recipe) -> list[str]:
    seeds = len(rows[0].cells)
    notes = [
        f"{recipe.train.epochs} epochs, {f'{seeds} seeds: mean ± standard deviation (n - 1)' if seeds > 1 else '1 seed'}; "
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
