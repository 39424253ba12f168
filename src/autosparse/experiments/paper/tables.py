"""The paper's tables: our numbers with those that it printed beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autosparse.experiments import tables
from autosparse.experiments.cells import Cell
from autosparse.experiments.paper.facts import TABLES, PaperRow, network_of, recipe_of, rows_of
from autosparse.experiments.paper.scales import Scale
from autosparse.experiments.results import failures, results
from autosparse.experiments.runner import Outcome
from autosparse.experiments.summaries import Summary, drop, summarise
from autosparse.experiments.tables import Table, shown
from autosparse.training.folder import write_text

BLEU = "bleu"


@dataclass(frozen=True)
class TableRow:
    """A row of the paper with the runs that stand for it."""

    paper: PaperRow
    cells: tuple[Cell, ...]
    bases: tuple[Cell, ...]


def planned(item: str, scale: Scale) -> list[TableRow]:
    """The rows of a table and their runs."""
    rows = []
    for row in rows_of(item):
        network = network_of(recipe_of(row.table, row.place))
        rows.append(TableRow(row, scale.row(row), scale.base(network)))
    return rows


def cells_of(rows: Sequence[TableRow]) -> list[Cell]:
    """All runs of a table, dense ones first."""
    return [*(cell for row in rows for cell in row.bases), *(cell for row in rows for cell in row.cells)]


def table_of(item: str, rows: Sequence[TableRow], outcomes: Mapping[str, Outcome], scale: Scale) -> Table:
    """Every column twice: ours, then the paper's."""
    measure = "BLEU (S)" if item == "table4" else "Top1(S)"
    columns = ("Base", measure, "Drop %", "S %", "Train F", "Test F")
    headings = ["method", "setting", *(name for column in columns for name in (column, "paper"))]
    failed = any(failures(row.cells, outcomes) for row in rows)
    lines = []
    for row in rows:
        ours, theirs = tables.summary_cells(_summary(item, row, outcomes)), _printed(row.paper)
        pairs = [cell for both in zip(ours, theirs, strict=True) for cell in both]
        messages = failures(row.cells, outcomes)
        message = [f"FAILED: {'; '.join(messages)}" if messages else ""] if failed else []
        lines.append((row.paper.label, row.paper.setting, *pairs, *message))
    number, title = item.removeprefix("table"), TABLES[item][1]
    headings += ["message"] if failed else []
    return Table(f"Table {number}: {title}", tuple(headings), tuple(lines), tuple(_notes(rows, scale)))


def write(item: str, rows: Sequence[TableRow], outcomes: Mapping[str, Outcome], scale: Scale, folder: Path) -> Table:
    """ITEM.md, ITEM.csv and ITEM.json; the table as it was written."""
    table = table_of(item, rows, outcomes, scale)
    plain = [
        {
            "method": row.paper.label,
            "setting": row.paper.setting,
            **asdict(_summary(item, row, outcomes)),
            **{f"paper_{name}": getattr(row.paper, name) for name in ("base", "accuracy", "sparsity")},
            "paper_drop": _drop(row.paper),
            "paper_train_fraction": row.paper.train_fraction,
            "paper_test_fraction": row.paper.test_fraction,
        }
        for row in rows
    ]
    write_text(folder / f"{item}.md", tables.markdown(table))
    write_text(folder / f"{item}.csv", tables.comma_separated(plain))
    content = {"title": table.title, "scale": scale.name, "notes": list(table.notes), "rows": plain}
    write_text(folder / f"{item}.json", tables.as_json(content))
    return table


def _summary(item: str, row: TableRow, outcomes: Mapping[str, Outcome]) -> Summary:
    ours, bases = results(row.cells, outcomes), results(row.bases, outcomes)
    if item == "table4":
        scored = [[result for result in group if result.get(BLEU) is not None] for group in (ours, bases)]
        return summarise(scored[0], scored[1], BLEU, 1.0)
    return summarise(ours, bases)


def _printed(row: PaperRow) -> tuple[str, ...]:
    """The paper's numbers in the order of `summary_cells`."""
    return (
        f"{row.base:.2f}",
        f"{row.accuracy:.2f}",
        shown(_drop(row), 2),
        f"{row.sparsity:.2f}",
        shown(row.train_fraction, 2),
        shown(row.test_fraction, 3),
    )


def _drop(row: PaperRow) -> float | None:
    """As printed, or worked out where the paper left it out."""
    return row.drop if row.drop is not None else drop(row.base, row.accuracy)


def _notes(rows: Sequence[TableRow], scale: Scale) -> list[str]:
    networks = dict.fromkeys(network_of(recipe_of(row.paper.table, row.paper.place)) for row in rows)
    notes = [scale.caption(list(networks), scale.seeds)]
    notes.append("`paper` columns: what the paper printed for ImageNet-1K and WMT14. Drop % = 100 (Base - sparse) / Base.")
    if scale.name == "cpu":
        notes.append(
            "AutoSparse and STR aim at the sparsity that the paper printed for the row; alpha and the epoch at which it "
            "becomes 0 are the paper's, in the same share of a shorter run. Auto-tuned rows find theirs."
        )
    return notes


def missing_bleu(rows: Sequence[TableRow], outcomes: Mapping[str, Outcome]) -> list[Cell]:
    """Finished runs of table 4 that were not scored with beam search yet."""
    cells = {cell.name: cell for cell in cells_of(rows)}
    return [cell for name, cell in cells.items() if (result := _result(name, outcomes)) and result.get(BLEU) is None]


def _result(name: str, outcomes: Mapping[str, Outcome]) -> dict[str, Any] | None:
    return outcomes[name].result if name in outcomes else None
