"""Across processes: a resumed run ends as the unbroken one does, and two ranks stay equal. One launch for all methods."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import autosparse

from ..states import differences
from .worker import ALONE, TOGETHER, WORLD

ROOT = Path(__file__).parents[2]
NAMES = autosparse.list_methods()
how_many = pytest.mark.parametrize("tried", ["few", pytest.param("all", marks=pytest.mark.slow)])


def launch(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.every_method.worker", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def finish(processes: list[subprocess.Popen[str]]) -> None:
    try:
        errors = [process.communicate(timeout=400)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    # torch's gloo processes may abort (SIGABRT) while the interpreter shuts down, after all work is written: that is compared
    for process, error in zip(processes, errors, strict=True):
        raced = process.returncode == -signal.SIGABRT and "terminate called without an active exception" in error
        assert process.returncode == 0 or raced, error


@how_many
def test_resume_in_a_new_process_is_bit_exact(tmp_path: Path, tried: str) -> None:
    """Cut in the middle of an epoch, at its end, after scoring, between two rounds and in the middle of one."""
    # both in processes of their own: what other tests left in this one (flags of torch, memory) must not matter
    finish([launch("unbroken", str(tmp_path), tried)])
    finish([launch("resume", str(tmp_path), tried)])
    expected, ended = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("unbroken", "ended"))
    wrong = {key: differences(ended[key], expected[key]) for key in expected}
    assert {key: found for key, found in wrong.items() if found} == {}
    assert len(wrong) == len(NAMES) * len(ALONE[tried])


@how_many
def test_two_ranks_stay_bit_identical(tmp_path: Path, tried: str) -> None:
    """Weights, optimizer, masks, thresholds, counts at every step and the report, though the ranks see other images."""
    finish([launch(str(number), str(tmp_path), tried) for number in range(WORLD)])
    first, second = (torch.load(tmp_path / f"rank{number}.pt", weights_only=True) for number in range(WORLD))
    assert len(first) == len(NAMES) * len(TOGETHER[tried])
    wrong = {key: differences(first[key], second[key]) for key in first}
    assert {key: found for key, found in wrong.items() if found} == {}
