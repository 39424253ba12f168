"""One seed for all workers of `make chaos`, the marker of all tests here, and the table at the end."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

import pytest

from .tally import SCALE, SEED, TABLE, table


def pytest_configure(config: pytest.Config) -> None:
    """Before the workers start: they inherit the seed and the table."""
    if config.getoption("markexpr") == "chaos":
        os.environ.setdefault(SEED, str(secrets.randbelow(1_000_000)))
        if TABLE not in os.environ:
            descriptor, os.environ[TABLE] = tempfile.mkstemp(suffix=".jsonl", prefix="chaos-")
            os.close(descriptor)


def pytest_report_header() -> str | None:
    if SEED in os.environ:
        return f"chaos: {SEED}={os.environ[SEED]} {SCALE}={os.environ.get(SCALE, '1')}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.chaos)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """On the controller alone; workers do not report."""
    path = Path(os.environ.get(TABLE, "nowhere"))
    if path.is_file() and path.stat().st_size:
        terminalreporter.section("chaos")
        for line in table(path):
            terminalreporter.write_line(line)
