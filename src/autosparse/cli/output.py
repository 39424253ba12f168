"""JSON for programs, a first line at once, and the page of runs; tables for people are `common.tables`."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2))


def begin(what: str) -> None:
    """Say on a terminal what has begun: torch takes seconds to load, and nothing else is seen until then."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr, flush=True)


def write_page(runs: Iterable[Path], out: Path) -> Path | None:
    """The HTML report of these runs in a folder; None, with a word, where what it needs is not installed."""
    from autosparse.report import read_run, write_report

    try:
        return write_report([read_run(run) for run in runs], out)
    except ImportError as error:
        print(f"no report was written: {error}", file=sys.stderr)
        return None
