"""Top-KAST: the largest weights forward, a larger set backward; and its two variants, which are TopKAST with other defaults."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import torch
from torch import Tensor

from autosparse import functional
from autosparse.common.tensors import kth_smallest, top_mask
from autosparse.layer import Layer
from autosparse.methods.annealing import GradientAnnealing
from autosparse.methods.families.base import About, Run, Traits, layer_parts, require
from autosparse.methods.families.budget import Budgeted
from autosparse.methods.families.magnitude import DenseGradient, Periodic
from autosparse.methods.registry import register
from autosparse.parametrizations import Masked


class PowerMasked(Masked):
    """theta = phi |phi|^(a - 1), soft-thresholded if asked, times the mask; what is stored is phi."""

    def __init__(self, weight: Tensor, exponent: float, soft: bool, backward_density: float | None) -> None:
        super().__init__(weight, restricts_gradient=backward_density is not None)
        self.exponent = exponent
        self.backward_density = backward_density
        dtype = torch.promote_types(weight.dtype, torch.float32)
        self.threshold: Tensor | None
        self.register_buffer("threshold", torch.zeros(1, dtype=dtype, device=weight.device) if soft else None)

    def full(self, stored: Tensor) -> Tensor:
        """theta before the mask."""
        if self.exponent == 1:
            return stored
        theta: Tensor = _Power.apply(stored, self.exponent)  # type: ignore[no-untyped-call]
        return theta

    def forward(self, weight: Tensor) -> Tensor:
        theta = self.full(weight)
        if self.threshold is not None:
            theta = functional.soft_threshold(theta, self.threshold, 1.0)  # a gate of 1: the mask decides who receives
        return functional.gated_mask(theta, self.mask, self.gate if self.is_open else None, self.receives)

    def unpruned(self, stored: Tensor) -> Tensor:
        return self.full(stored)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight if self.exponent == 1 else functional.power_inverse(weight, self.exponent)

    def gradient_floor(self) -> float:
        floor = super().gradient_floor()
        return floor if self.backward_density is None else min(floor, self.backward_density)

    def active(self, weight: Tensor) -> Tensor:
        if self.threshold is None:
            return self.mask
        return self.mask & functional.is_active(self.full(weight), self.threshold)

    def cached_count(self, weight: Tensor) -> int | None:
        return super().cached_count(weight) if self.threshold is None else None

    def threshold_values(self) -> Tensor | None:
        return self.threshold

    def set_threshold(self, magnitudes: Tensor, count: int) -> None:
        """T = the largest pruned magnitude of theta, so that `count` weights lie above it."""
        if self.threshold is not None:
            pruned = magnitudes.numel() - count
            largest = kth_smallest(magnitudes, pruned) if pruned else torch.zeros_like(self.threshold)
            self.threshold.copy_(self.full(largest))


class _Power(torch.autograd.Function):
    """phi |phi|^(a - 1) and its derivative a |phi|^(a - 1): 0 at 0, where the product rule of autograd gives 0 * inf."""

    @staticmethod
    def forward(stored: Tensor, exponent: float) -> Tensor:
        return functional.power(stored, exponent)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.exponent = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (stored,) = ctx.saved_tensors
        return stored.abs().pow_(ctx.exponent - 1).mul_(ctx.exponent).mul_(grad), None


@register
class TopKAST(DenseGradient, Periodic, Budgeted):
    """The largest weights forward, a larger set backward; a regulariser makes weights outside compete.

    A = the largest weights, B = a larger set: forward W * 1_A, gradient to all of B. TopKAST* is backward_sparsity 0.
    """

    about = About(
        name="topkast",
        year=2020,
        family="sparse to sparse",
        pruned_gradient="G inside the backward set B",
        train_flops="2 f_A + f_B",
        reference="Jayakumar et al., Top-KAST: Top-K Always Sparse Training, NeurIPS 2020",
    )

    stores_zeros = False

    sparsity: float = 0.8
    backward_sparsity: float = 0.5
    exploration: float = 1e-4
    power: float = 1.0
    soft: bool = False
    dense_first: bool = True
    dense_last: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.backward_sparsity <= self.sparsity,
            f"backward_sparsity = {self.backward_sparsity}; allowed: from 0 (TopKAST*) to the sparsity of {self.sparsity}",
        )
        require(self.exploration >= 0, f"exploration = {self.exploration}; it is a decay and must be at least 0")
        require(self.power >= 1, f"power = {self.power}; the exponent must be at least 1 (1 is plain TopKAST)")

    @property
    def traits(self) -> Traits:
        return replace(super().traits, penalty_decays=self.exploration > 0)

    def parametrization(self, layer: Layer, sp: Run) -> PowerMasked:
        receiving = self.budget(sp, self.backward_sparsity)[layer.name] / layer.numel if self.backward_sparsity else None
        return PowerMasked(layer.stored, self.power, self.soft, receiving)

    def renew(self, sp: Run) -> None:
        forward, backward = self.budget(sp), self.budget(sp, self.backward_sparsity)
        for layer, powered in layer_parts(sp, PowerMasked):
            magnitude, count = layer.weight().abs().contiguous(), forward[layer.name]  # flattened once, for all that follows
            powered.mask.copy_(top_mask(magnitude, count))
            if powered.receives is not None:
                powered.receives.copy_(top_mask(magnitude, backward[layer.name]))
            powered.set_threshold(magnitude, count)

    def penalty(self, sp: Run) -> Tensor | float:
        """lambda / 2 (sum over A of W^2 + sum over B \\ A of W^2 / d_f), on theta; it takes the place of weight decay."""
        if not self.exploration:
            return 0.0
        total = torch.zeros((), device=sp.layers[0].stored.device)
        budget = self.budget(sp)
        for layer, powered in layer_parts(sp, PowerMasked):
            theta = powered.full(layer.stored)
            active = functional.as_numbers(powered.mask, theta.dtype)
            pulled = (1 - active).mul_(layer.numel / budget[layer.name])
            if powered.receives is not None:
                pulled.mul_(functional.as_numbers(powered.receives, theta.dtype))
            # half the sum of squares, as a product with a constant: its gradient is that constant, a short backward pass
            total = total + (pulled.add_(active).mul_(theta.detach()) * theta).sum()
        return self.exploration * (total - total.detach() / 2)


@register
class TopKASTPP(TopKAST):
    """TopKAST on weights stored as their signed root: the rich get richer.

    TopKAST* with PowerPropagation: weights are stored as phi with theta = phi |phi|^(a - 1), so large ones learn faster.
    """

    about = About(
        name="topkast+pp",
        year=2021,
        family="sparse to sparse",
        pruned_gradient="G * a |phi|^(a-1) inside the backward set B",
        train_flops="2 f_A + f_B",
        reference="Schwarz et al., Powerpropagation: A sparsity inducing weight reparameterisation, NeurIPS 2021",
    )

    backward_sparsity: float = 0.0
    power: float = 1.375


@register
class TopKASTGA(TopKAST):
    """TopKAST whose gradients outside the active set are scaled by an annealed alpha."""

    about = About(
        name="topkast+ga",
        year=2023,
        family="sparse to sparse",
        pruned_gradient="alpha * G inside the backward set B, alpha annealed",
        train_flops="2 f_A + f_B while alpha > 0, 3 f_A after",
        reference="Kundu et al., AutoSparse: Towards Automated Sparse Training of Deep Neural Networks, arXiv 2304.06941",
    )

    backward_sparsity: float = 0.0
    ga: GradientAnnealing | None = field(default_factory=GradientAnnealing)
