"""Reading an effective weight: the quick way gives what torch's own gives, and gives way to whoever wants to look."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

import autosparse
from autosparse import GMP, AutoSparse, Sparsifier
from autosparse.layer import Parts
from autosparse.methods import Method


def sparsified(method: Method) -> tuple[nn.Linear, Sparsifier]:
    torch.manual_seed(0)
    model = nn.Linear(16, 8)
    return model, autosparse.sparsify(model, method, epochs=2, steps_per_epoch=2)


def by_torch(model: nn.Linear) -> Tensor:
    with parametrize.cached():
        return model.weight


@pytest.mark.parametrize("method", [AutoSparse(start_sparsity=0.5), GMP(sparsity=0.5)])
def test_the_effective_weight_and_its_gradient_are_those_of_torchs_own_way(method: Method) -> None:
    model, sp = sparsified(method)
    quick, slow = model.weight, by_torch(model)
    assert torch.equal(quick, slow)
    received = []
    for weight in (quick, slow):
        model.zero_grad()
        weight.pow(2).sum().backward()
        received.append(sp.layers[0].stored.grad.clone())
    assert torch.equal(*received)


def test_a_deep_copy_reads_its_own_weight() -> None:
    model, _ = sparsified(AutoSparse(start_sparsity=0.5))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.parametrizations["weight"].original.mul_(3)
    assert not torch.equal(twin.weight, model.weight)
    assert torch.equal(twin.weight, by_torch(twin))


@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_on_the_parametrization_are_called(everywhere: bool) -> None:
    model, _ = sparsified(AutoSparse(start_sparsity=0.5))
    seen: list[type[nn.Module]] = []

    def hook(module: nn.Module, *_: object) -> None:
        seen.append(type(module))

    handle = register_module_forward_hook(hook) if everywhere else model.parametrizations["weight"].register_forward_hook(hook)
    try:
        _ = model.weight
    finally:
        handle.remove()
    assert Parts in seen
    _ = model.weight
    assert len(seen) == seen.count(Parts) == 1


def test_a_second_parametrization_by_the_user_still_counts() -> None:
    model, _ = sparsified(AutoSparse(start_sparsity=0.5))
    before = model.weight.detach()

    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    parametrize.register_parametrization(model, "weight", Doubled())
    assert torch.equal(model.weight, 2 * before)
