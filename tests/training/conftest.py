"""Runs of a small net on the digits that can be made to receive a signal at a chosen step."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import safetensors.torch
import torch

from autosparse import cli

NET = '''
import atexit, os, signal
import torch
from torch import nn


class Net(nn.Sequential):
    """Sends its own process a signal at the SIGNAL_AT-th training forward pass, unless torchrun has restarted it."""

    calls = 0

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            Net.calls += 1
            here = os.environ.get("RANK", "0") == os.environ.get("SIGNAL_RANK", "0")
            here = here and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
            if here and Net.calls == int(os.environ.get("SIGNAL_AT", "0")):
                os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
        return super().forward(x)


def net(width=8):
    made = Net(
        nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.1),
        nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU()),
        nn.Flatten(), nn.Linear(32 * width, 10),
    )
    if os.environ.get("KEEP_RANKS"):
        atexit.register(lambda: torch.save(made.state_dict(), f"rank{os.environ['RANK']}.pt"))
    return made


def words():
    return "no net"


def exploding():
    made = net()
    with torch.no_grad():
        made[-1].weight.mul_(1e30)
    return made
'''
RECIPE = """
description: for tests
model: {name: "user_net:net"}
data: {source: digits, batch_size: 32, channels: 1, classes: 10, limit: 400, limit_test: 100}
method: {name: autosparse, alpha: 0.75, target_sparsity: 0.6}
optimizer: {lr: 0.05, weight_decay: 1e-3}
schedule: {warmup_epochs: 1}
train: {epochs: 4, label_smoothing: 0.1, clip: 1.0, accumulate: 2, threads: 1, save_minutes: 1e-6}
"""


class Workshop:
    """A folder with a recipe and a net of the user's own, and the command run in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "user_net.py").write_text(NET)
        (path / "tiny.yaml").write_text(RECIPE)

    def command(
        self, *arguments: str, ranks: int = 1, restarts: int = 0, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        start = [sys.executable, "-m", "autosparse"]
        if ranks > 1:
            start = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={ranks}",
                f"--max-restarts={restarts}",
                "-m",
                "autosparse",
            ]
        settings = {**os.environ, "OMP_NUM_THREADS": "1", "AUTOSPARSE_ALLOW_CODE": "user_net", **(environment or {})}
        return subprocess.run(
            [*start, *arguments], cwd=self.path, env=settings, capture_output=True, text=True, timeout=300, check=False
        )

    def train(self, out: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.command("train", "tiny.yaml", "--no-report", "--out", out, *arguments, **options)

    def answer(self, out: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """The same command inside this process, for what trains nothing: it is refused, or has nothing to do."""
        words = ["train", "tiny.yaml", "--no-report", "--out", out, *arguments]
        settings = {"AUTOSPARSE_ALLOW_CODE": "user_net", **(environment or {})}
        output, errors = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, settings),
            contextlib.chdir(self.path),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
            pytest.raises(SystemExit) as end,
        ):
            cli.main(words)
        return subprocess.CompletedProcess(words, end.value.code or 0, output.getvalue(), errors.getvalue())

    def weights(self, out: str) -> dict[str, torch.Tensor]:
        return safetensors.torch.load_file(self.path / out / "model.safetensors")

    def metrics(self, out: str) -> list[dict[str, Any]]:
        """The lines of all epochs without the one thing that may differ: time."""
        lines = [json.loads(line) for line in (self.path / out / "metrics.jsonl").read_text().splitlines()]
        times = ("seconds", "processor_seconds", "step_ms", "dense_step_ms")
        return [{name: value for name, value in line.items() if name not in times} for line in lines]

    def json(self, out: str, name: str) -> dict[str, Any]:
        return json.loads((self.path / out / name).read_text())

    def assert_same(self, first: str, second: str) -> None:
        assert self.metrics(first) == self.metrics(second)
        ours, others = self.weights(first), self.weights(second)
        assert ours.keys() == others.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, others[name]), name


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture
def fresh_workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """One in which the test's own process stands, for runs inside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "user_net", raising=False)
    monkeypatch.setenv("AUTOSPARSE_ALLOW_CODE", "user_net,plain_net,nowhere")
    return Workshop(tmp_path)
