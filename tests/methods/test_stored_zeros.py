"""Pruned weights are stored as zeros: when the pass that puts them there can be left out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autosparse
from autosparse import kernels
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.sparsifier import Sparsifier

OFTEN = {"set": {"update_every": 3}, "rigl": {"update_every": 3}, "mest": {"update_epochs": 1}, "gmp": {"update_every": 3}}


class Shifting(torch.optim.Optimizer):
    """Moves all weights, pruned or not."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(0.01)


def start(
    kind: type[torch.optim.Optimizer] = torch.optim.SGD, name: str = "random"
) -> tuple[Sparsifier, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    method = autosparse.method(name, sparsity=0.5, dense_first=False, **OFTEN.get(name, {}))
    sp = autosparse.sparsify(model, method, epochs=2, steps_per_epoch=20)
    options = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01} if issubclass(kind, torch.optim.SGD) else {"lr": 0.01}
    optimizer = kind(sp.param_groups(), **options)
    sp.bind(optimizer)
    return sp, optimizer


def step(sp: Sparsifier, optimizer: torch.optim.Optimizer) -> int:
    """How often the first layer's weight was written in one step."""
    optimizer.zero_grad()
    sp.model(torch.randn(5, 6)).square().mean().backward()
    version = sp.layers[0].stored._version
    optimizer.step()
    return sp.layers[0].stored._version - version


def strays(sp: Sparsifier) -> int:
    return sum(int((layer.weight()[~mask_of(layer)] != 0).sum()) for layer in sp.layers)


@pytest.mark.skipif(not kernels.available(), reason="without kernels nothing is counted, and the pass is always made")
@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad]
)
def test_an_optimizer_that_leaves_zeros_alone_needs_the_pass_once(kind: type[torch.optim.Optimizer]) -> None:
    sp, optimizer = start(kind)
    first = step(sp, optimizer)
    for _ in range(5):
        assert step(sp, optimizer) == first - 1
        assert strays(sp) == 0


def test_an_optimizer_that_moves_zeros_gets_the_pass_at_every_step() -> None:
    sp, optimizer = start(Shifting)
    for _ in range(4):
        step(sp, optimizer)
        assert strays(sp) == 0


@pytest.mark.skipif(not kernels.available(), reason="without kernels nothing is counted, and the pass is always made")
def test_a_weight_that_moves_all_the_same_is_noticed_and_held_from_then_on() -> None:
    sp, optimizer = start()
    first, *_ = [step(sp, optimizer) for _ in range(3)]
    optimizer.state[sp.layers[0].stored]["momentum_buffer"].fill_(1.0)  # of pruned weights too
    step(sp, optimizer)
    assert strays(sp) > 0
    for _ in range(3):
        assert step(sp, optimizer) == first
        assert strays(sp) == 0


@pytest.mark.parametrize("name", OFTEN)
def test_masks_that_change_leave_nothing_behind(name: str) -> None:
    sp, optimizer = start(name=name)
    for _ in range(2):
        for _ in range(20):
            step(sp, optimizer)
            assert strays(sp) == 0
        sp.end_epoch(1.0)
    assert [layer.parametrization.cached_count(layer.stored) for layer in sp.layers] == sp.counts().tolist()
