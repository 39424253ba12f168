"""DST: a trainable threshold for every neuron or filter, with a long-tailed derivative of the step function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autosparse.common.tensors import threshold_for
from autosparse.functional import is_active
from autosparse.layer import Layer
from autosparse.methods.families.base import About, Method, Run, layer_parts, require
from autosparse.methods.families.learned_mask import learned_tensor, per_channel
from autosparse.methods.registry import register
from autosparse.parametrizations import SparseParametrization


def step_derivative(x: Tensor) -> Tensor:
    """H'(x): 2 - 4|x| up to .4, then .4 up to 1, then 0."""
    size = x.abs()
    # the larger of the two branches is the right one everywhere, and on a CPU far quicker than torch.where
    return torch.maximum(2 - 4 * size, size.le_(1).mul_(0.4))


class _TrainedStep(torch.autograd.Function):
    @staticmethod
    def forward(weight: Tensor, threshold: Tensor) -> Tensor:
        return weight.abs().gt_(threshold.to(weight.dtype)).mul_(weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        weight, threshold = ctx.saved_tensors
        distance = weight.abs().sub_(threshold.to(weight.dtype))
        structure = step_derivative(distance).mul_(weight).mul_(grad)
        to_threshold = -structure.to(threshold.dtype).sum_to_size(threshold.shape)
        return distance.gt_(0).mul_(grad).addcmul_(structure, weight.sign()), to_threshold


class FilterThreshold(SparseParametrization):
    """w * 1{|w| > t} with a learned t for every output channel."""

    def __init__(self, layer: Layer, reset: float) -> None:
        super().__init__(layer.stored)
        self.threshold = learned_tensor(layer.stored, per_channel(layer), 0.0)
        self.reset = reset

    def forward(self, weight: Tensor) -> Tensor:
        effective: Tensor = _TrainedStep.apply(weight, self.threshold)  # type: ignore[no-untyped-call]
        return effective

    def active(self, weight: Tensor) -> Tensor:
        return is_active(weight, self.threshold.detach())

    def threshold_values(self) -> Tensor:
        return self.threshold.detach()

    def reset_if_dead(self, weight: Tensor) -> None:
        """All thresholds to 0 once the kept share is down to `reset`; without a sync."""
        density = torch.count_nonzero(self.active(weight)) / weight.numel()
        self.threshold.data.mul_(density > self.reset)

    def limit_density(self, weight: Tensor, density: float) -> bool:
        if density <= self.reset:  # so far down the method's own remedy applies
            self.threshold.data.zero_()
        else:
            bound = threshold_for(weight.detach().abs(), density)
            self.threshold.data.clamp_max_(bound.to(self.threshold.dtype))
        return True


@register
class DST(Method):
    """One trained threshold per neuron or filter; a penalty on small thresholds sets the sparsity.

    Per-filter thresholds that a penalty exp(-t) pushes up and the loss holds back.
    """

    about = About(
        name="dst",
        year=2020,
        family="learned budgets",
        pruned_gradient="structure term G w H'(|w| - t) sign(w)",
        train_flops="2 f_S + f_D",
        reference="Liu et al., Dynamic Sparse Training: Find Efficient Sparse Network From Scratch With Trainable Masked "
        "Layers, ICLR 2020",
    )

    penalty_weight: float = 5e-6
    reset: float = 0.01
    dense_first: bool = False
    dense_last: bool = False

    def __post_init__(self) -> None:
        require(self.penalty_weight >= 0, f"penalty_weight = {self.penalty_weight}; it must be at least 0")
        require(0 <= self.reset < 1, f"reset = {self.reset}; allowed: a kept share with 0 <= reset < 1")

    def parametrization(self, layer: Layer, sp: Run) -> FilterThreshold:
        return FilterThreshold(layer, self.reset)

    def start(self, sp: Run) -> None:
        for _, part in layer_parts(sp, FilterThreshold):
            part.threshold.data.zero_()

    def after_step(self, sp: Run) -> None:
        for layer, part in layer_parts(sp, FilterThreshold):
            part.reset_if_dead(layer.weight())

    def penalty(self, sp: Run) -> Tensor:
        return (
            self.penalty_weight * torch.stack([(-p.threshold).exp().sum() for _, p in layer_parts(sp, FilterThreshold)]).sum()
        )
