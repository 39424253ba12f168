"""Deployed nets given inputs of any shape, dtype, stride and device, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autosparse.kernels import library
from autosparse.kernels.build import build

from .tally import SEED, scaled, seed, tally

ROOT = Path(__file__).parents[2]
INPUTS = 300  # for each of the nets
NETS = 6


def runtime(name: str) -> str:
    return subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_any_input_under_the_sanitizers(tmp_path: Path) -> None:
    build(tmp_path, "address,undefined")
    for instruction_set in library.INSTRUCTION_SETS:
        with tally(f"inputs under the sanitizers, {instruction_set}") as counted:
            environment = {
                **os.environ,
                "LD_PRELOAD": f"{runtime('libasan.so')}:{runtime('libubsan.so')}",
                "ASAN_OPTIONS": "detect_leaks=0",  # what Python leaves allocated at exit is not ours
                "UBSAN_OPTIONS": "print_stacktrace=1",
                library.FOLDER_VARIABLE: str(tmp_path),
                library.VARIABLE: instruction_set,
                "OMP_NUM_THREADS": "2",
                "FUZZ_EXAMPLES": str(scaled(INPUTS)),
                SEED: str(seed()),
            }
            command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--capture=sys", "-p", "no:cacheprovider"]
            done = subprocess.run(
                [*command, "tests/serving/test_fuzzed_inputs.py"],
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600, check=False,
            )  # fmt: skip
            passed = re.search(r"(\d+) passed", done.stdout)
            if passed is None and "skipped" in done.stdout:
                counted.note = "this processor has none of it"
                continue
            counted.trials = scaled(INPUTS) * NETS
            if done.returncode != 0 or passed is None or int(passed[1]) != NETS:
                counted.failures.append(f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
