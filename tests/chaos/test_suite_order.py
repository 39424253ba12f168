"""A part of the quick tests in random order, with 1, 2 and 4 workers; every seed chooses another part."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .tally import TABLE, chance_of, scaled, seed, tally

ROOT = Path(__file__).parents[2]
LEFT_OUT = ("chaos", "compatibility", "integrations")  # long ones, whose tests start processes of their own
SHARE = 5  # one module of this many


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_random_order(workers: int) -> None:
    modules = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if not set(path.relative_to(ROOT).parts) & set(LEFT_OUT)
    )
    chosen = chance_of(f"order {workers}").sample(modules, scaled(len(modules) // SHARE))
    with tally(f"quick tests in random order, {workers} workers") as counted:
        environment = {name: value for name, value in os.environ.items() if name != TABLE and not name.startswith("PYTEST_")}
        environment |= {"AUTOSPARSE_TEST_ORDER": str(seed()), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadscope", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-m", "not slow and not chaos", *chosen],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600, check=False,
        )  # fmt: skip
        numbers = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
        counted.trials, counted.note = sum(numbers.values()), f"{len(chosen)} of {len(modules)} modules"
        if done.returncode not in (0, 5):
            counted.failures += [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))] or [
                done.stdout[-3000:]
            ]
