"""Masks whose pruned weights are stored as exact zeros: set one, hold it, draw one at random."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.common.tensors import top_mask
from autosparse.functional import as_numbers
from autosparse.layer import Layer
from autosparse.methods.families.base import Method, Run, part
from autosparse.parametrizations import Masked


def mask_of(layer: Layer) -> Tensor:
    """The mask of a layer, the buffer itself: True where the weight is active."""
    return part(layer, Masked).mask


def set_mask(sp: Run, layer: Layer, mask: Tensor) -> None:
    """Give a layer a new mask: weights outside become 0, and only those active before and after keep optimizer state."""
    clear_state(sp, layer, mask_of(layer) & mask)
    write_mask(layer, mask)


def write_mask(layer: Layer, mask: Tensor) -> None:
    """The new mask and its zeros, with the optimizer's state left as it is."""
    buffer = mask_of(layer)
    buffer.copy_(mask)
    layer.stored.detach().masked_fill_(~buffer, 0)


def clear_state(sp: Run, layer: Layer, keep: Tensor) -> None:
    """Zero the optimizer's state of a layer's weight (momentum, moments) outside `keep`."""
    for value in sp.optimizer_state(layer).values():
        if isinstance(value, Tensor) and value.shape == keep.shape:
            value.masked_fill_(~keep, 0)


def hold_zeros(sp: Run) -> None:
    """Put exact zeros where stored weights are pruned, whatever the optimizer did to them."""
    # With a gate of 0 most optimizers leave a zero alone; those that mix entries (Muon, LBFGS) do not.
    for layer in sp.layers:
        layer.stored.detach().mul_(as_numbers(mask_of(layer), layer.stored.dtype))


def random_scores(layer: Layer, generator: torch.Generator) -> Tensor:
    """One torch.rand of the layer's shape, drawn on the CPU so that every device and rank makes the same choice."""
    return torch.rand(layer.shape, generator=generator).to(layer.stored.device)


def random_mask(layer: Layer, count: int, generator: torch.Generator) -> Tensor:
    """Exactly `count` active weights at random places."""
    return top_mask(random_scores(layer, generator), count)


@dataclass(frozen=True, kw_only=True)
class FixedMask(Method):
    """A mask that only the method changes, dense at the start; pruned weights get no gradient and stay stored as zeros."""

    def start(self, sp: Run) -> None:
        for layer in sp.layers:
            set_mask(sp, layer, torch.ones_like(layer.stored, dtype=torch.bool))

    def after_step(self, sp: Run) -> None:
        hold_zeros(sp)
