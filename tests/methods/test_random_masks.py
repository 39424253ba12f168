"""Random masks are random: they say nothing about the weights, although one seed makes both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from autosparse import Sparsifier, sparsify
from autosparse.methods.dsr import DSR
from autosparse.methods.families.budget import Budgeted
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.methods.mest import MEST
from autosparse.methods.random_mask import Random
from autosparse.methods.rigl import RigL
from autosparse.methods.set_ import SET
from autosparse.methods.snfs import SNFS

METHODS: dict[str, Callable[..., Budgeted]] = {
    "set": SET,
    "snfs": SNFS,
    "dsr": DSR,
    "rigl": RigL,
    "random": Random,
    "mest": partial(MEST, mutation=(0.0, 0.0)),  # a mutation at the start would replace the smallest weights
}
INITS: dict[str, Callable[[Tensor], object]] = {"uniform": nn.init.kaiming_uniform_, "normal": nn.init.kaiming_normal_}
LARGEST_Z = 5  # standard deviations; chance gives one in a million more, and 3.2 is the largest of all values here


def net_of(seed: int, init: str) -> nn.Sequential:
    """Only weights, so that the numbers of the masks would lie beside those of the weights."""
    net = nn.Sequential(
        nn.Conv2d(8, 24, 3, bias=False), nn.Flatten(), nn.Linear(96, 40, bias=False), nn.Linear(40, 30, bias=False)
    )
    torch.manual_seed(seed)
    for parameter in net.parameters():
        INITS[init](parameter)
    return net


def start(name: str, distribution: str, seed: int, init: str = "uniform") -> tuple[Sparsifier, list[Tensor]]:
    """A run, and the weights of its layers as they were before."""
    model = net_of(seed, init)
    dense = [parameter.detach().clone() for parameter in model.parameters()]
    method = METHODS[name](sparsity=0.8, distribution=distribution, dense_first=False)
    return sparsify(model, method, epochs=2, steps_per_epoch=2, seed=seed), dense


def deviation(values: Tensor, chosen: Tensor) -> float:
    """How far the mean of the chosen values is from that of all, in standard deviations of drawing without replacement."""
    total, count = values.numel(), int(chosen.sum())
    spread = values.std() * ((1 / count - 1 / total) ** 0.5)
    return float((values[chosen].mean() - values.mean()) / spread)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("distribution", ["uniform", "er", "erk"])
@pytest.mark.parametrize("name", METHODS)
def test_active_weights_are_like_the_others_of_their_layer(name: str, distribution: str, init: str) -> None:
    for seed in range(10):
        run, dense = start(name, distribution, seed, init)
        for layer, weight in zip(run.layers, dense, strict=True):
            mask = mask_of(layer)
            assert 0 < int(mask.sum()) < mask.numel()
            assert abs(deviation((weight > 0).float(), mask)) < LARGEST_Z
            assert abs(deviation(weight.abs(), mask)) < LARGEST_Z


def test_a_saved_stream_goes_on_whatever_seeded_it() -> None:
    run, _ = start("set", "er", seed=0)
    saved = torch.Generator().manual_seed(0)  # how version 0.1 made it
    run.load_state_dict(run.state_dict() | {"generator": saved.get_state()})
    assert torch.equal(torch.rand(9, generator=run.generator), torch.rand(9, generator=saved))
