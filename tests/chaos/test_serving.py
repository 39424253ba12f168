"""Deployed models under many threads with batches of all sizes, and in forked children of busy parents."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from autosparse.kernels import library
from autosparse.serving import Deployed, deploy
from autosparse.serving.native import NativeRegion

from .tally import scaled, tally

pytestmark = pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}")
THREADS = 8
CALLS = {"linear": 640_000, "convolutions": 240_000, "convolutions and linear": 120_000}
CALLS_OF_ONE = 20_000  # of one deployed model, which is new to all sizes at first
FORKS = 60


def linear() -> tuple[nn.Module, list[Tensor]]:
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8))
    return model, [torch.randn(tokens, 24) for tokens in range(1, 41)]


def convolutions() -> tuple[nn.Module, list[Tensor]]:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
    return model, [torch.randn(batch, 3, size, size) for size in range(4, 10) for batch in (1, 2, 3)]


def both() -> tuple[nn.Module, list[Tensor]]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    return model, [torch.randn(batch, 3, size, size) for size in (4, 6, 9) for batch in (1, 2, 5, 8)]


BUILD: dict[str, Callable[[], tuple[nn.Module, list[Tensor]]]] = {
    "linear": linear,
    "convolutions": convolutions,
    "convolutions and linear": both,
}


@pytest.fixture
def _native_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions run natively whatever the clock says of nets this small."""
    measure = NativeRegion.measure

    def ours_first(region: NativeRegion, inputs: list[Tensor]) -> tuple[float, float]:
        measure(region, inputs)
        return 0.0, 1.0

    monkeypatch.setattr(NativeRegion, "measure", ours_first)


@pytest.fixture
def _frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.filterwarnings("ignore:deploy")
@pytest.mark.usefixtures("_native_wins", "_frequent_switches")
@pytest.mark.parametrize("kind", CALLS)
def test_threads(kind: str) -> None:
    with tally(f"calls by {THREADS} threads, {kind}") as counted:
        calls = scaled(CALLS[kind])
        while counted.trials < calls:
            model, inputs = half_pruned(*BUILD[kind]())
            with torch.no_grad():
                expected = [model(x) for x in inputs]
            deployed = deploy(model, inputs[0], threads=1)
            problems = call_from_threads(deployed, inputs, expected, min(CALLS_OF_ONE, calls - counted.trials))
            counted.count(problems[0] if problems else None, min(CALLS_OF_ONE, calls - counted.trials))


def half_pruned(model: nn.Module, inputs: list[Tensor]) -> tuple[nn.Module, list[Tensor]]:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[torch.rand_like(parameter) < 0.5] = 0
    return model.eval(), inputs


def call_from_threads(deployed: Deployed, inputs: list[Tensor], expected: list[Tensor], calls: int) -> list[str]:
    """All threads begin at the same moment, each at another input; what went wrong."""
    together = threading.Barrier(THREADS)
    problems: list[str] = []

    def serve(first: int) -> None:
        together.wait()
        for call in range(first, calls, THREADS):
            number = (first * 7 + call // THREADS) % len(inputs)
            try:
                difference = (deployed(inputs[number]) - expected[number]).abs().max()
            except Exception as error:  # any error is a failure
                problems.append(f"{type(error).__name__}: {error}")
                return
            if not difference < 1e-4:
                problems.append(f"input {number} of shape {tuple(inputs[number].shape)}: off by {difference}")
                return

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(serve, range(THREADS)))
    return problems


# Threads serve all the time; children are forked from among them, serve some calls and end.
FORKING = """
import os, signal, sys, threading, time, warnings
import torch
from torch import nn
from autosparse.serving import deploy

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 32))
model.eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter[torch.rand_like(parameter) < 0.5] = 0
    inputs = [torch.randn(batch, 3, 8, 8) for batch in (1, 2, 5, 16)]
    expected = [model(x) for x in inputs]
deployed = deploy(model, inputs[1], threads=2)
over = threading.Event()

def right(number):
    return torch.allclose(deployed(inputs[number % 4]), expected[number % 4], atol=1e-4)

def serve(first):
    while not over.is_set():
        assert right(first)
        first += 1

threads = [threading.Thread(target=serve, args=(first,), daemon=True) for first in range(4)]
for thread in threads:
    thread.start()
failures = 0
for number in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        signal.alarm(300)  # a child that hangs ends by it
        os._exit(0 if all(right(call) for call in range(8)) else 3)
    _, status = os.waitpid(child, 0)
    failures += status != 0
over.set()
for thread in threads:  # one that computes while the interpreter ends aborts the process
    thread.join()
print(failures)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forks() -> None:
    with tally("forked children of a serving parent") as counted:
        forks = scaled(FORKS)
        done = subprocess.run(
            [sys.executable, "-c", FORKING, str(forks)], capture_output=True, text=True, timeout=3600, check=False
        )
        counted.trials = forks
        if done.returncode != 0 or done.stderr:
            counted.failures.append(f"exit code {done.returncode}: {done.stderr[-2000:]}")
        counted.failures += [f"{done.stdout.strip()} children failed"] * (done.stdout.strip() != "0")
