"""Across processes: a resumed run ends as the unbroken one does, and two ranks stay equal. One launch for all methods."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import autosparse

from .running import COMBINATIONS, differences, trajectory
from .worker import TOGETHER, WORLD

ROOT = Path(__file__).parents[2]
NAMES = autosparse.list_methods()


def launch(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.every_method.worker", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def finish(processes: list[subprocess.Popen[str]]) -> None:
    try:
        errors = [process.communicate(timeout=400)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(errors)


def test_resume_in_a_new_process_is_bit_exact(tmp_path: Path) -> None:
    """Cut in the middle of an epoch, at its end, after scoring, between two rounds and in the middle of one."""
    runs = {name: {f"{net}, {opt}": trajectory(name, net, opt) for net, opt in COMBINATIONS} for name in NAMES}
    torch.save({name: {key: ran.cut for key, ran in each.items()} for name, each in runs.items()}, tmp_path / "cut.pt")
    finish([launch("resume", str(tmp_path))])
    ended = torch.load(tmp_path / "ended.pt", weights_only=True)
    wrong: dict[str, Any] = {}
    for name, each in runs.items():
        for key, ran in each.items():
            expected = {**ran.run.state(), "report": str(ran.run.sp.report())}
            wrong[f"{name}, {key}"] = differences(ended[f"{name}, {key}"], expected)
    assert {key: found for key, found in wrong.items() if found} == {}
    assert len(wrong) == len(NAMES) * len(COMBINATIONS)


def test_two_ranks_stay_bit_identical(tmp_path: Path) -> None:
    """Weights, optimizer, masks, thresholds, counts at every step and the report, though the ranks see other images."""
    finish([launch(str(number), str(tmp_path)) for number in range(WORLD)])
    first, second = (torch.load(tmp_path / f"rank{number}.pt", weights_only=True) for number in range(WORLD))
    assert len(first) == len(NAMES) * len(TOGETHER)
    wrong = {key: differences(first[key], second[key]) for key in first}
    assert {key: found for key, found in wrong.items() if found} == {}
