"""A table for people and programs: the same rows as Markdown, CSV, JSON and on the terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autosparse.experiments.summaries import Summary

NOTHING = ""


@dataclass(frozen=True)
class Table:
    """Headings, cells as they are shown, and lines that say under which conditions."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def markdown(table: Table) -> str:
    """The table with its title and notes; `|` in a cell is escaped."""
    lines = [f"# {table.title}", "", _line(table.headings), _line(["---"] * len(table.headings))]
    lines += [_line(row) for row in table.rows]
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def comma_separated(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of plain numbers under the union of their keys; an absent value is an empty cell."""
    headings = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, headings, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(content: Any) -> str:
    """Indented JSON with an end of line."""
    return json.dumps(content, indent=2) + "\n"


def show(table: Table) -> None:
    """Print it with rich: numbers to the right, what failed in red."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 10_000  # a table in a pipe or a file is never folded
    drawn = Drawn(title=table.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(table.headings):
        column = [row[place] for row in table.rows if row[place]]
        numeric = bool(column) and all(cell[0] in "-0123456789" for cell in column)
        drawn.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell, style="red" if cell.startswith("FAILED") else "") for cell in row))
    with console.capture() as captured:
        console.print(drawn)
        for note in table.notes:
            console.print(note, soft_wrap=True, markup=False)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n"))


def shown(value: float | None, places: int, deviation: float | None = None) -> str:
    """A number as people read it, with its deviation where there is one."""
    if value is None:
        return NOTHING
    return f"{value:.{places}f}" + (f" ± {deviation:.{places}f}" if deviation is not None else "")


def summary_cells(summary: Summary) -> tuple[str, ...]:
    """Base, Top1(S), Drop %, S %, Train F, Test F: the paper's columns."""
    return (
        shown(summary.base, 2, summary.base_deviation),
        shown(summary.accuracy, 2, summary.deviation),
        shown(summary.drop, 2),
        shown(summary.sparsity, 2),
        shown(summary.train_fraction, 3),
        shown(summary.test_fraction, 3),
    )
