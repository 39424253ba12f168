"""SWAT: sparse weights in the forward and input-gradient passes, sparse activations in the weight-gradient pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from autosparse.common.ranks import ranks
from autosparse.compute import activation_sparsity
from autosparse.compute.activation_sparsity import InputBound
from autosparse.distributions import DISTRIBUTIONS
from autosparse.layer import Layer
from autosparse.methods.families.base import About, require
from autosparse.methods.families.magnitude import GLOBAL, DenseGradient

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


class SparseWeightAndInput(InputBound):
    """Also remembers the smallest active magnitude: between updates it is the absolute threshold of the weights."""

    cut: Tensor

    def __init__(self, weight: Tensor, input_sparsity: float) -> None:
        super().__init__(weight, input_sparsity)
        self.register_buffer("cut", torch.zeros(1, dtype=weight.dtype, device=weight.device))


@dataclass(frozen=True, kw_only=True)
class SWAT(DenseGradient):
    """Top-k weights forward, dense activations; dW is taken with the top-k of the inputs and reaches all weights."""

    allocations: ClassVar[tuple[str, ...]] = (*DISTRIBUTIONS, GLOBAL)
    about: ClassVar[About] = About(
        name="swat",
        year=2020,
        family="fixed budget, sparse to sparse",
        budget="budgeted",
        pruned_gradient="G of the largest activations (alpha * G with ga)",
        train_flops="2 f_S + (1 - S_act) f_D",
        reference="Raihan and Aamodt, Sparse Weight Activation Training, NeurIPS 2020",
        doc="The largest weights forward; the weight gradient uses only the largest activations.",
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

    def parametrization(self, layer: Layer, run: Sparsifier) -> SparseWeightAndInput:
        for place in layer.places:
            if place.tensor == "weight" and activation_sparsity.supports(place.module):
                activation_sparsity.attach(place.module)
        return SparseWeightAndInput(layer.stored, self.input_sparsity)

    def detach(self, run: Sparsifier) -> None:
        for place in (place for layer in run.layers for place in layer.places):
            activation_sparsity.detach(place.module)

    def due(self, run: Sparsifier) -> bool:
        # absolute thresholds drift, so the run ends with an update and thereby at the promised counts
        return super().due(run) or run.step == run.total_steps

    def refresh(self, run: Sparsifier) -> None:
        super().refresh(run)
        for layer in run.layers:
            found = _of(layer)
            found.cut.copy_(self.magnitude(layer).masked_fill_(~found.mask, torch.inf).min())
            found.renew()

    def before_step(self, run: Sparsifier) -> bool:
        if self.due(run) and ranks() > 1:
            bounds = torch.cat([_of(layer).bound for layer in run.layers])
            dist.all_reduce(bounds)
            for layer, bound in zip(run.layers, bounds / ranks(), strict=True):
                _of(layer).bound.copy_(bound)
        return False

    def after_step(self, run: Sparsifier) -> None:
        super().after_step(run)
        if not self.due(run):
            for layer in run.layers:
                found = _of(layer)
                found.mask.copy_(self.magnitude(layer) >= found.cut)

    def passes(self, density: Tensor, run: Sparsifier) -> tuple[Tensor, Tensor, Tensor]:
        forward, to_input, to_weight = super().passes(density, run)
        attached = [activation_sparsity.is_attached(layer.places[0].module) for layer in run.layers]
        used = [1 - self.input_sparsity if each else 1.0 for each in attached]
        return forward, to_input, to_weight * torch.tensor(used, dtype=density.dtype, device=density.device)


def _of(layer: Layer) -> SparseWeightAndInput:
    found = layer.parametrization
    assert isinstance(found, SparseWeightAndInput)
    return found
