"""3SP: channels removed before training by their sensitivity per FLOP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autosparse.methods.families.base import About, Run, Stateful, Traits, require, require_sparsity
from autosparse.methods.families.channel_budget import ChannelBudget
from autosparse.methods.families.fixed_mask import FixedMask
from autosparse.methods.families.scored import LossFunction, ScoredOnce, required, summed_gradients
from autosparse.methods.registry import register
from autosparse.structure.wiring import Wiring, wire

DEFAULT_FLOPS = 0.5


@register
class ThreeSP(ScoredOnce, FixedMask):
    """Removes whole channels before training, those of least sensitivity per FLOP.

    The sensitivity is |dL/dc|, c = 1 a gate on the channel; the least go until the budget is met.
    """

    about = About(
        name="3sp",
        year=2020,
        family="before training",
        pruned_gradient="none",
        train_flops="3 f_S, and 3 f_D for every batch scored",
        reference="van Amersfoort et al., Single Shot Structured Pruning Before Training, arXiv 2007.00389",
    )
    facts = Traits(needs_example=True)

    flops: float | None = None
    sparsity: float | None = None
    per_flop: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.flops is None or self.sparsity is None,
            "give flops (the share of the network's FLOPs that stays) or sparsity (the share of zeros), not both",
        )
        if self.sparsity is not None:
            require_sparsity("sparsity", self.sparsity)
        require(
            self.flops is None or 0 < self.flops <= 1,
            f"flops = {self.flops}; it is the share of FLOPs that stays: 0 < flops <= 1",
        )

    def parts(self, sp: Run) -> dict[str, Stateful]:
        return {"wiring": wire(sp.model, sp.layers, sp.example_input, self.about.name)}

    def choose(self, sp: Run, batches: Iterable[Any], loss_fn: LossFunction | None) -> dict[str, Tensor]:
        wiring: Wiring = sp.parts["wiring"]
        gradients, batch_count = summed_gradients(sp, batches, required(loss_fn, self.about.name), "3SP")
        sp.ledger.add_dense_steps(batch_count)
        products = {layer.name: layer.weight() * gradients[layer.name] for layer in sp.layers}
        kept = self.kept(sp, sensitivities(wiring, products))
        on_device = torch.from_numpy(kept).to(sp.layers[0].stored.device)
        return {layer.name: wiring.mask(layer.name, on_device, layer.shape) for layer in sp.layers}

    def kept(self, sp: Run, scores: Tensor) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which channels stay, given their sensitivities."""
        if not bool(scores.isfinite().all()):
            raise RuntimeError("the sensitivities of the channels are not finite: look at the loss and the weights")
        if float(scores.sum()) == 0:
            raise RuntimeError("every gradient is 0: the loss does not depend on the channels on these batches")
        profile = sp.ledger.known_profile()
        budget = ChannelBudget.of(sp.parts["wiring"], sp.layers, profile)
        numbers = scores.double().cpu().numpy()
        order = np.argsort(numbers / budget.macs_per_channel() if self.per_flop else numbers, kind="stable")
        if self.sparsity is not None:
            kept = budget.remove(order, weights=1 - self.sparsity)
        else:
            kept = budget.remove(order, flops=DEFAULT_FLOPS if self.flops is None else self.flops)
        sp.ledger.set_product_densities(budget.product_densities(kept))
        return kept

    def notes(self, sp: Run) -> list[str]:
        return channel_notes(sp.parts["wiring"])


def sensitivities(wiring: Wiring, products: dict[str, Tensor]) -> Tensor:
    """|dL/dc| of every channel from weight times gradient.

    A gate on a channel scales the weights of all layers that read it: dL/dc is the sum of w * dL/dw over these.
    """
    total = torch.zeros(wiring.count, dtype=torch.float64)
    for name, product in products.items():
        slices = wiring.layers[name]
        ids = None if slices.reads is None else slices.dims[slices.reads]
        if ids is None or slices.reads is None:
            continue
        sums = product.movedim(slices.reads, 0).reshape(len(ids), -1).double().sum(1).cpu()
        index = torch.from_numpy(ids)
        total.index_add_(0, index[index >= 0], sums[index >= 0])
    return total.abs()


def channel_notes(wiring: Wiring) -> list[str]:
    """Which layers keep all their channels, and why."""
    return [f"{name} keeps its channels: {reason}" for name, reason in list(wiring.stay.items())[:5]]
