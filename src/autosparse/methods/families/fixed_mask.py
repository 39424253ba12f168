"""Shared by methods whose pruned weights are stored as exact zeros: set a mask, hold it, start from an exact random one.

A method whose mask comes from elsewhere (scores, rounds) subclasses `FixedMask` and calls `set_mask(run, layer, mask)`;
one that starts from a random mask of a given budget subclasses `RandomStart`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autosparse.common.tensors import top_mask
from autosparse.distributions import DISTRIBUTIONS, counts, distribute
from autosparse.functional import as_numbers
from autosparse.layer import Layer
from autosparse.methods.families.base import Method, first_and_last, require
from autosparse.parametrizations import Masked

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


def mask_of(layer: Layer) -> Tensor:
    """The mask of a layer, the buffer itself: True where the weight is active."""
    found = layer.parametrization
    assert isinstance(found, Masked)
    return found.mask


def set_mask(run: Sparsifier, layer: Layer, mask: Tensor) -> None:
    """Give a layer a new mask: weights outside become 0, and only those active before and after keep optimizer state."""
    clear_state(run, layer, mask_of(layer) & mask)
    write_mask(layer, mask)


def write_mask(layer: Layer, mask: Tensor) -> None:
    """The new mask and its zeros, with the optimizer's state left as it is."""
    held = mask_of(layer)
    held.copy_(mask)
    layer.stored.detach().masked_fill_(~held, 0)


def clear_state(run: Sparsifier, layer: Layer, keep: Tensor) -> None:
    """Zero the optimizer's state of a layer's weight (momentum, moments) outside `keep`."""
    for value in run.optimizer_state(layer).values():
        if isinstance(value, Tensor) and value.shape == keep.shape:
            value.masked_fill_(~keep, 0)


def hold(layer: Layer) -> None:
    """Put exact zeros where the stored weight is pruned, whatever the optimizer did to it."""
    layer.stored.detach().mul_(as_numbers(mask_of(layer), layer.stored.dtype))


def random_mask(layer: Layer, count: int, generator: torch.Generator) -> Tensor:
    """Exactly `count` active weights at random places: one torch.rand of the layer's shape, the largest win."""
    return top_mask(torch.rand(layer.shape, generator=generator), count).to(layer.stored.device)


@dataclass(frozen=True, kw_only=True)
class FixedMask(Method):
    """A mask that only the method changes; pruned weights get no gradient and stay stored as zeros."""

    def parametrization(self, layer: Layer, run: Sparsifier) -> Masked:
        return Masked(layer.stored)

    def after_step(self, run: Sparsifier) -> None:
        # With a gate of 0 most optimizers leave a zero alone; those that mix entries (Muon, LBFGS) do not.
        for layer in run.layers:
            hold(layer)


@dataclass(frozen=True, kw_only=True)
class RandomStart(FixedMask):
    """A random mask at the start, its counts given by a distribution.

    dense_first None is RigL's convention: the first layer is dense under "uniform", sparse under "er" and "erk".
    Under "uniform" dense layers are left out of the run; under "er" and "erk" they count towards the overall budget.
    """

    sparsity: float = 0.9
    distribution: str = "uniform"
    dense_first: bool | None = None
    dense_last: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.sparsity < 1, f"sparsity = {self.sparsity}; it is the fraction of zeros: 0 <= sparsity < 1")
        require(
            self.distribution in DISTRIBUTIONS,
            f"distribution = {self.distribution!r}; allowed: {', '.join(DISTRIBUTIONS)}",
        )

    def check(self, run: Sparsifier) -> None:
        self.budget(run)

    def keeps_dense(self, names: Sequence[str]) -> Sequence[str]:
        return self._ends(names) if self.distribution == "uniform" else ()

    def _ends(self, names: Sequence[str]) -> list[str]:
        first = self.distribution == "uniform" if self.dense_first is None else self.dense_first
        return first_and_last(names, first, self.dense_last)

    def dense_inside(self, run: Sparsifier) -> list[str]:
        """Names of the run's layers that stay dense by convention and count towards the budget."""
        return [] if self.distribution == "uniform" else self._ends([layer.name for layer in run.layers])

    def budget(self, run: Sparsifier, sparsity: float | None = None) -> dict[str, int]:
        """Active weights of every layer, at the method's sparsity or another one."""
        shapes = {layer.name: tuple(layer.shape) for layer in run.layers}
        wanted = self.sparsity if sparsity is None else sparsity
        return counts(shapes, distribute(self.distribution, shapes, wanted, self.dense_inside(run)))

    def start(self, run: Sparsifier) -> None:
        # From the same point of the generator every time: loading a dense checkpoint does not change the masks.
        run.generator.set_state(run.memory.setdefault("generator_at_start", run.generator.get_state()))
        budget = self.start_budget(run)
        for layer in run.layers:
            set_mask(run, layer, random_mask(layer, budget[layer.name], run.generator))

    def start_budget(self, run: Sparsifier) -> dict[str, int]:
        """Active weights of every layer at the start."""
        return self.budget(run)
