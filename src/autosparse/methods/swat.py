"""SWAT: sparse weights in the forward and input-gradient passes, sparse activations in the weight-gradient pass."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from autosparse.common.ranks import ranks
from autosparse.compute import activation_sparsity
from autosparse.compute.activation_sparsity import InputBound
from autosparse.distributions import DISTRIBUTIONS
from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run, layer_parts, part, require
from autosparse.methods.families.budget import GLOBAL
from autosparse.methods.families.magnitude import DenseGradient, Magnitude
from autosparse.methods.registry import register


class SparseWeightAndInput(InputBound):
    """Also remembers the smallest active magnitude: between updates it is the absolute threshold of the weights."""

    cut: Tensor

    def __init__(self, weight: Tensor, input_sparsity: float) -> None:
        super().__init__(weight, input_sparsity)
        self.register_buffer("cut", torch.zeros(1, dtype=weight.dtype, device=weight.device))


@register
class SWAT(DenseGradient, Magnitude):
    """The largest weights forward; the weight gradient uses only the largest activations.

    Top-k weights forward, dense activations; dW is taken with the top-k of the inputs and reaches all weights.
    """

    allocations = (*DISTRIBUTIONS, GLOBAL)
    about = About(
        name="swat",
        year=2020,
        family="sparse to sparse",
        pruned_gradient="G of the largest activations (alpha * G with ga)",
        train_flops="2 f_S + (1 - S_act) f_D",
        reference="Raihan and Aamodt, Sparse Weight Activation Training, NeurIPS 2020",
    )

    activation_sparsity: float | None = None
    update_every: int | None = None
    dense_first: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.activation_sparsity is None or 0 <= self.activation_sparsity < 1,
            f"activation_sparsity = {self.activation_sparsity}; allowed: 0 <= activation_sparsity < 1, None: as the weights",
        )

    @property
    def input_sparsity(self) -> float:
        return self.sparsity if self.activation_sparsity is None else self.activation_sparsity

    def parametrization(self, layer: Layer, sp: Run) -> SparseWeightAndInput:
        for place in layer.places:
            if place.tensor == "weight" and activation_sparsity.supports(place.module):
                activation_sparsity.attach(place.module)
        return SparseWeightAndInput(layer.stored, self.input_sparsity)

    def due(self, sp: Run) -> bool:
        # absolute thresholds drift, so the run ends with an update and thereby at the promised counts
        return super().due(sp) or sp.step == sp.total_steps

    def renew(self, sp: Run) -> None:
        super().renew(sp)
        for layer, bounded in layer_parts(sp, SparseWeightAndInput):
            bounded.cut.copy_(self.magnitude(layer).masked_fill_(~bounded.mask, torch.inf).min())
            bounded.renew()

    def before_step(self, sp: Run) -> bool:
        if self.due(sp) and ranks() > 1:
            bounds = torch.cat([part(layer, SparseWeightAndInput).bound for layer in sp.layers])
            dist.all_reduce(bounds)
            for layer, bound in zip(sp.layers, bounds / ranks(), strict=True):
                part(layer, SparseWeightAndInput).bound.copy_(bound)
        return super().before_step(sp)

    def after_step(self, sp: Run) -> None:
        super().after_step(sp)
        if not self.due(sp):
            for layer, bounded in layer_parts(sp, SparseWeightAndInput):
                bounded.mask.copy_(self.magnitude(layer) >= bounded.cut)

    def passes(self, density: Tensor, sp: Run) -> tuple[Tensor, Tensor, Tensor]:
        forward, to_input, to_weight = super().passes(density, sp)
        attached = [activation_sparsity.is_attached(layer.places[0].module) for layer in sp.layers]
        used = [1 - self.input_sparsity if is_attached else 1.0 for is_attached in attached]
        return forward, to_input, to_weight * torch.tensor(used, dtype=density.dtype, device=density.device)
