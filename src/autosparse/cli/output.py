"""JSON for programs, a first line at once, grids of runs and their page; tables for people are `common.tables`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from autosparse.experiments.grid import Cell
    from autosparse.experiments.runner import Outcome


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2))


def begin(what: str) -> None:
    """Say on a terminal what has begun: torch takes seconds to load, and nothing else is seen until then."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr, flush=True)


def run_grid(cells: Sequence[Cell], folder: Path, jobs: int | None) -> dict[str, Outcome]:
    """Run what is not done yet and tell of every run; an interrupt ends the command with a word."""
    from autosparse.experiments.progress import progress
    from autosparse.experiments.runner import Interrupted, run_cells

    try:
        with progress(len(cells)) as listen:
            return run_cells(cells, folder, jobs, listen)
    except Interrupted:
        typer.echo("stopped: the runs have saved; the same command again goes on from there", err=True)
        raise typer.Exit(130) from None


def write_page(runs: Iterable[Path], out: Path) -> Path | None:
    """The HTML report of these runs in a folder; None, with a word, where what it needs is not installed."""
    from autosparse.report import read_run, write_report

    try:
        return write_report([read_run(run) for run in runs], out)
    except ImportError as error:
        print(f"no report was written: {error}", file=sys.stderr)
        return None
