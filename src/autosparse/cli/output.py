"""What every verb prints with: JSON for programs, tables for people."""

import json
import sys
from collections.abc import Sequence
from typing import Any

# Wide enough that a table in a pipe or a file is never folded.
PIPE_WIDTH = 10_000


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], totals: Sequence[Any] | None = None) -> None:
    """Print rows under their headings; numbers stand right-aligned, totals under a line."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_footer=totals is not None, pad_edge=False)
    for place, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[place], int | float) for row in rows)
        footer = cell(totals[place]) if totals is not None else ""
        table.add_column(column, Text(footer), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(width=width, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines() if line.strip()))


def cell(value: Any) -> str:
    """A value as people read it: 25,557,032 and 0.1000."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
