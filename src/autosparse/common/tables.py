"""One table for people to read: as aligned text, as Markdown, or on a terminal, where long cells wrap."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Headings and rows of any values; numeric columns are right-aligned, totals below a rule, notes at the end."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    totals: Sequence[Any] | None = None
    title: str = ""
    notes: Sequence[str] = ()

    def text(self) -> str:
        """Aligned columns for a pipe, a file or `print`."""
        head, *body = [[cell(value) for value in row] for row in self._lines()]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        right = [self._is_numeric(place) for place in range(len(head))]
        lines = [_aligned(row, widths, right) for row in (head, *body)]
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        lines.insert(1, rule)
        if self.totals is not None:
            lines.insert(-1, rule)
        return "\n".join([*([self.title] if self.title else []), *lines, *self.notes])

    def markdown(self) -> str:
        """A Markdown table with its title and notes; `|` in a cell is escaped."""
        head, *body = self._lines()
        lines = [_markdown_row(row) for row in (head, ["---"] * len(head), *body)]
        title = [f"# {self.title}", ""] if self.title else []
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([*title, *lines, *notes]) + "\n"

    def show(self) -> None:
        """Print it: long cells wrap on a terminal and stay on one line elsewhere."""
        if not sys.stdout.isatty():
            print(self.text())
            return
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as Drawn
        from rich.text import Text

        footers = self.totals if self.totals is not None else [""] * len(self.headings)
        drawn = Drawn(title=self.title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_footer=any(footers))
        for place, (heading, footer) in enumerate(zip(self.headings, footers, strict=True)):
            drawn.add_column(
                heading, Text(cell(footer)), justify="right" if self._is_numeric(place) else "left", overflow="fold"
            )
        for row in self.rows:
            drawn.add_row(*(Text(cell(value), style="red" if str(value).startswith("FAILED") else "") for value in row))
        console = Console(highlight=False)
        console.print(drawn)
        for note in self.notes:
            console.print(note, soft_wrap=True, markup=False)

    def _lines(self) -> list[Sequence[Any]]:
        return [self.headings, *self.rows, *([self.totals] if self.totals is not None else [])]

    def _is_numeric(self, place: int) -> bool:
        if place == 0:  # names of the rows, even where a layer is called "0"
            return False
        values = [row[place] for row in self.rows if row[place] not in ("", "-", None)]
        return bool(values) and all(isinstance(value, int | float) or str(value)[:1] in "-+0123456789" for value in values)


def cell(value: Any) -> str:
    """A value as people read it: 25,557,032 and 0.1000."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4f}" if isinstance(value, float) else " ".join(str(value).splitlines())


def _aligned(cells: Iterable[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


def _markdown_row(values: Sequence[Any]) -> str:
    return "| " + " | ".join(cell(value).replace("|", r"\|") for value in values) + " |"
