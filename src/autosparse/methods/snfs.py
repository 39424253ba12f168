"""SNFS, sparse momentum: momentum says where weights grow and how many each layer gets; the total stays."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run
from autosparse.methods.families.drop_grow import DropAndGrow, apportion, drop, grow
from autosparse.methods.families.fixed_mask import clear_state, mask_of, write_mask
from autosparse.methods.registry import register

NEARLY_DENSE = 0.2  # below this sparsity a layer that gains weights loses no more than it has room for
FILL = 0.99  # of a layer's free places, so that it does not become dense at once


@register
class SNFS(DropAndGrow):
    """Moves weights to the layers and places with the largest momentum, every epoch.

    At the end of every epoch: drop by |w| in every layer, share the total by mean |momentum|, grow by |momentum|.
    """

    about = About(
        name="snfs",
        year=2019,
        family="sparse to sparse",
        pruned_gradient="G, into the optimizer's momentum; the weight itself stays 0",
        train_flops="2 f_S + f_D",
        reference="Dettmers and Zettlemoyer, Sparse Networks from Scratch: Faster Training without Losing Performance, 2019, "
        "arXiv 1907.04840",
    )

    drop_fraction: float = 0.5
    final_drop_fraction: float = 0.005
    dense_first: bool | None = False

    def gate(self, sp: Run) -> float:
        return 1.0

    def after_step(self, sp: Run) -> None:
        if sp.step == 1:
            momentum(sp, sp.layers[0])  # refuses an optimizer without momentum now, not an epoch later
        super().after_step(sp)

    def renew(self, sp: Run) -> None:
        layers = self.sparse_layers(sp)
        sizes = torch.stack([momentum(sp, layer)[mask_of(layer)].abs().mean() for layer in layers]).double()
        active = [int(count) for count in torch.stack([torch.count_nonzero(mask_of(layer)) for layer in layers])]
        total = float(sizes.sum())
        shares = [size / total if total else 1 / len(layers) for size in sizes.tolist()]
        removed = [
            self.removed(count, layer.numel, share * len(layers), self.fraction(sp))
            for layer, count, share in zip(layers, active, shares, strict=True)
        ]
        free = [layer.numel - count + gone for layer, count, gone in zip(layers, active, removed, strict=True)]
        room = [int(FILL * places) for places in free]
        grown = apportion(shares, sum(removed), room if sum(room) >= sum(removed) else free)
        for layer, gone, more in zip(layers, removed, grown, strict=True):
            remaining = drop(mask_of(layer), self.drop_scores(layer, sp), gone)
            mask = grow(remaining, momentum(sp, layer).abs(), more)
            clear_state(sp, layer, ~mask | mask_of(layer))  # momentum stays dense; only what grows starts from 0
            write_mask(layer, mask)

    @staticmethod
    def removed(active: int, size: int, relative_share: float, fraction: float) -> int:
        """How many weights a layer gives up, at most all but one; relative_share is 1 for a layer with a mean share."""
        sparsity = 1 - active / size
        if sparsity < NEARLY_DENSE and relative_share >= 1:
            fraction = min(sparsity, fraction)
        return min(math.ceil(round(fraction * active, 6)), active - 1)


def momentum(sp: Run, layer: Layer) -> Tensor:
    """The optimizer's momentum of a weight; for Adam and its kin m / sqrt(v)."""
    state = sp.optimizer_state(layer)
    if isinstance(state.get("exp_avg"), Tensor):
        second = state.get("exp_avg_sq")
        first: Tensor = state["exp_avg"]
        return first / (second.sqrt() + 1e-8) if isinstance(second, Tensor) else first
    buffer = state.get("momentum_buffer")
    if not isinstance(buffer, Tensor):
        raise ValueError(
            f"snfs reads the optimizer's momentum, and there is none for {layer.name}: use SGD(momentum=0.9) or Adam, "
            "and give the optimizer all parameters of the model"
        )
    return buffer
