"""Masks whose pruned weights are stored as exact zeros: set one, hold it, draw one at random."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, optim

from autosparse.common.tensors import top_mask
from autosparse.functional import as_numbers
from autosparse.kernels import masks
from autosparse.layer import Layer
from autosparse.methods.families.base import Method, Run, part
from autosparse.parametrizations import Masked

# Their steps leave a weight at zero that has no gradient and no momentum; those that mix entries (Muon, LBFGS) do not.
ELEMENTWISE = frozenset({
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad, optim.Adadelta, optim.RMSprop
})  # fmt: skip


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


def hold_zeros(sp: Run, everywhere: bool = False) -> None:
    """Put exact zeros where stored weights are pruned, whatever the optimizer did to them.

    Left out, unless `everywhere`, where a zero without gradient stays one by the optimizer's rule, and was seen to: it is a
    pass over all weights. The next forward pass notices a weight that has moved all the same.
    """
    stays = not everywhere and all(type(optimizer) in ELEMENTWISE for optimizer in sp.optimizers)
    for layer in sp.layers:
        masked = part(layer, Masked)
        if stays and masked.zeros_last and not masked.is_open:
            continue
        _zero_pruned(layer, masked)


def _zero_pruned(layer: Layer, masked: Masked) -> None:
    stored = layer.stored.detach()
    if not masks.fits(stored, masked.mask):
        stored.mul_(as_numbers(masked.mask, stored.dtype))
        return
    masks.masked_product(stored, masked.mask, into=stored)
    torch.autograd.graph.increment_version(stored)
    if masked.zeros_last is None:
        masked.zeros_last = True


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
