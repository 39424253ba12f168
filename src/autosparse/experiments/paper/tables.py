"""The paper's tables: our numbers with those that it printed beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autosparse.common.tables import Table
from autosparse.experiments.grid import Cell
from autosparse.experiments.paper.facts import TABLES, PaperRow, network_of, recipe_of, rows_of
from autosparse.experiments.paper.scales import Scale
from autosparse.experiments.runner import Outcome
from autosparse.experiments.tables import Summary, drop, results, shown, summarise, with_failures, write_table

BLEU = "bleu"


@dataclass(frozen=True)
class TableRow:
    """A row of the paper with the runs that stand for it, or one of ours beside it, which the paper did not print."""

    paper: PaperRow
    cells: tuple[Cell, ...]
    bases: tuple[Cell, ...]
    printed: bool = True


def planned(item: str, scale: Scale) -> list[TableRow]:
    """The rows of a table and their runs."""
    rows = []
    for row in rows_of(item):
        bases = scale.base(network_of(recipe_of(row.table, row.place)))
        rows.append(TableRow(row, scale.row(row), bases))
        ramped = scale.ramped(row)
        if ramped:
            ours = replace(row, label=f"{row.label} with our ramp", setting="target_sparsity; not in the paper")
            rows.append(TableRow(ours, ramped, bases, printed=False))
    return rows


def cells_of(rows: Sequence[TableRow]) -> list[Cell]:
    """All runs of a table, dense ones first."""
    return [*(cell for row in rows for cell in row.bases), *(cell for row in rows for cell in row.cells)]


def table_of(item: str, rows: Sequence[TableRow], outcomes: Mapping[str, Outcome], scale: Scale) -> Table:
    """Every column twice: ours, then the paper's."""
    measure = "BLEU (S)" if item == "table4" else "Top1(S)"
    columns = ("Base", measure, "Drop %", "S %", "Train F", "Test F")
    headings = ("method", "setting", *(name for column in columns for name in (column, "paper")))
    lines = []
    for row in rows:
        pairs = zip(_summary(item, row, outcomes).cells(), _printed(row), strict=True)
        lines.append((row.paper.label, row.paper.setting, *(cell for pair in pairs for cell in pair)))
    table = Table(headings, lines, None, f"Table {item.removeprefix('table')}: {TABLES[item][1]}", _notes(rows, scale))
    return with_failures(table, [row.cells for row in rows], outcomes)


def write(item: str, rows: Sequence[TableRow], outcomes: Mapping[str, Outcome], scale: Scale, folder: Path) -> Table:
    """ITEM.md, ITEM.csv and ITEM.json; the table as it was written."""
    table = table_of(item, rows, outcomes, scale)
    plain = [
        {
            "method": row.paper.label,
            "setting": row.paper.setting,
            **asdict(_summary(item, row, outcomes)),
            **_paper_numbers(row),
        }
        for row in rows
    ]
    write_table(folder / item, table, plain, {"title": table.title, "scale": scale.name})
    return table


def _summary(item: str, row: TableRow, outcomes: Mapping[str, Outcome]) -> Summary:
    ours, bases = results(row.cells, outcomes), results(row.bases, outcomes)
    if item == "table4":
        scored = [[result for result in group if result.get(BLEU) is not None] for group in (ours, bases)]
        return summarise(scored[0], scored[1], BLEU, 1.0)
    return summarise(ours, bases)


def _paper_numbers(row: TableRow) -> dict[str, float | None]:
    """What the paper printed, in the order of `Summary.cells`; nothing for a row of ours."""
    paper = row.paper
    numbers = {
        "paper_base": paper.base,
        "paper_accuracy": paper.accuracy,
        "paper_drop": _drop(paper),
        "paper_sparsity": paper.sparsity,
        "paper_train_fraction": paper.train_fraction,
        "paper_test_fraction": paper.test_fraction,
    }
    return numbers if row.printed else dict.fromkeys(numbers)


def _printed(row: TableRow) -> tuple[str, ...]:
    digits = (2, 2, 2, 2, 2, 3)
    return tuple(shown(value, places) for value, places in zip(_paper_numbers(row).values(), digits, strict=True))


def _drop(row: PaperRow) -> float | None:
    """As printed, or worked out where the paper left it out."""
    return row.drop if row.drop is not None else drop(row.base, row.accuracy)


def _notes(rows: Sequence[TableRow], scale: Scale) -> list[str]:
    networks = dict.fromkeys(network_of(recipe_of(row.paper.table, row.paper.place)) for row in rows)
    notes = [scale.caption(list(networks), scale.seeds)]
    notes.append("`paper` columns: what the paper printed for ImageNet-1K and WMT14. Drop % = 100 (Base - sparse) / Base.")
    if scale.name == "cpu":
        notes.append(
            "alpha and the epoch at which it becomes 0 are the paper's, in the same share of a shorter run; "
            "auto-tuned rows find their alpha."
        )
    steered = dict.fromkeys(row.paper.label for row in rows if "target_sparsity" in row.cells[0].recipe.method)
    if steered:
        notes.append(f"Steered to the sparsity that the paper printed for the row: {', '.join(steered)}.")
    if not all(row.printed for row in rows):
        notes.append(
            "STR is as published: it starts late, and its sparsity follows from the decay of its thresholds. "
            "The paper has no row with our ramp."
        )
    return notes


def missing_bleu(rows: Sequence[TableRow], outcomes: Mapping[str, Outcome]) -> list[Cell]:
    """Finished runs of table 4 that were not scored with beam search yet."""
    cells = {cell.name: cell for cell in cells_of(rows)}
    return [cell for name, cell in cells.items() if (result := _result(name, outcomes)) and result.get(BLEU) is None]


def _result(name: str, outcomes: Mapping[str, Outcome]) -> dict[str, Any] | None:
    return outcomes[name].result if name in outcomes else None
