"""Several threads call one deployed model with sizes that are new to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from autosparse.kernels import library
from autosparse.serving import Deployed, deploy

pytestmark = [
    pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}"),
    pytest.mark.usefixtures("native_wins", "_frequent_switches"),
]
THREADS = 8


@pytest.fixture
def _frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def half_pruned(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[torch.rand_like(parameter) < 0.5] = 0
    return model.eval()


def call_from_threads(deployed: Deployed, inputs: list[Tensor], expected: list[Tensor], rounds: int) -> None:
    """Each thread begins at another input."""

    def serve(first: int) -> None:
        for place in range(rounds * len(inputs)):
            number = (first * 7 + place) % len(inputs)
            torch.testing.assert_close(deployed(inputs[number]), expected[number], rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(serve, range(THREADS)))


def test_linear_layers() -> None:
    torch.manual_seed(0)
    model = half_pruned(nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8)))
    deployed = deploy(model, torch.randn(1, 24), threads=1)
    inputs = [torch.randn(tokens, 24) for tokens in range(1, 151)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    call_from_threads(deployed, inputs, expected, rounds=2)


def test_convolutions_of_more_sizes_than_are_kept() -> None:
    torch.manual_seed(0)
    model = half_pruned(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)))
    deployed = deploy(model, torch.randn(1, 3, 8, 8), threads=1)
    inputs = [torch.randn(batch, 3, size, size) for size in range(4, 10) for batch in (1, 2, 3)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    call_from_threads(deployed, inputs, expected, rounds=4)
