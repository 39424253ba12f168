"""Top-KAST: the largest weights in the forward pass, a larger set in the backward pass; with PowerPropagation and with GA."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from autosparse import functional
from autosparse.common.tensors import kth_smallest, top_mask
from autosparse.layer import Layer
from autosparse.methods.annealing import GradientAnnealing
from autosparse.methods.families.base import About, require
from autosparse.methods.families.magnitude import DenseGradient
from autosparse.parametrizations import Masked

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


class PowerMasked(Masked):
    """theta = phi |phi|^(a - 1), soft-thresholded if asked, times the mask; what is stored is phi."""

    def __init__(self, weight: Tensor, exponent: float, soft: bool, restricts_gradient: bool) -> None:
        super().__init__(weight, restricts_gradient)
        self.exponent = exponent
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

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight if self.exponent == 1 else functional.power_inverse(weight, self.exponent)

    def active(self, weight: Tensor) -> Tensor:
        if self.threshold is None:
            return self.mask
        return self.mask & functional.is_active(self.full(weight), self.threshold)

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


@dataclass(frozen=True, kw_only=True)
class TopKAST(DenseGradient):
    """A = the largest weights, B = a larger set: forward W * 1_A, gradient to all of B. TopKAST* is backward_sparsity 0."""

    about: ClassVar[About] = About(
        name="topkast",
        year=2020,
        family="fixed budget, sparse to sparse",
        budget="budgeted",
        pruned_gradient="G inside the backward set B",
        train_flops="2 f_A + f_B",
        reference="Jayakumar et al., Top-KAST: Top-K Always Sparse Training, NeurIPS 2020",
        doc="The largest weights forward, a larger set backward; a regulariser makes weights outside compete.",
    )

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

    def parametrization(self, layer: Layer, run: Sparsifier) -> PowerMasked:
        return PowerMasked(layer.stored, self.power, self.soft, self.backward_sparsity > 0)

    def refresh(self, run: Sparsifier) -> None:
        forward, backward = self.active_counts(run, self.sparsity), self.active_counts(run, self.backward_sparsity)
        for layer, count, receiving in zip(run.layers, forward, backward, strict=True):
            found, magnitude = _of(layer), self.magnitude(layer).contiguous()  # flattened once, for all that follows
            found.mask.copy_(top_mask(magnitude, count))
            if found.receives is not None:
                found.receives.copy_(top_mask(magnitude, receiving))
            found.set_threshold(magnitude, count)

    def penalty(self, run: Sparsifier) -> Tensor | float:
        """lambda / 2 (sum over A of W^2 + sum over B \\ A of W^2 / d_f), on theta; it takes the place of weight decay."""
        if not self.exploration:
            return 0.0
        total = torch.zeros((), device=run.layers[0].stored.device)
        for layer, count in zip(run.layers, self.active_counts(run, self.sparsity), strict=True):
            found = _of(layer)
            theta = found.full(layer.stored)
            active = functional.as_numbers(found.mask, theta.dtype)
            pulled = (1 - active).mul_(layer.numel / count)
            if found.receives is not None:
                pulled.mul_(functional.as_numbers(found.receives, theta.dtype))
            # half the sum of squares, as a product with a constant: its gradient is that constant, a short backward pass
            total = total + (pulled.add_(active).mul_(theta.detach()) * theta).sum()
        return self.exploration * (total - total.detach() / 2)

    def passes(self, density: Tensor, run: Sparsifier) -> tuple[Tensor, Tensor, Tensor]:
        if not run.alpha:
            return density, density, density
        receiving = self.active_counts(run, self.backward_sparsity)
        shares = [count / layer.numel for layer, count in zip(run.layers, receiving, strict=True)]
        return density, density, torch.tensor(shares, dtype=density.dtype, device=density.device)


def _of(layer: Layer) -> PowerMasked:
    found = layer.parametrization
    assert isinstance(found, PowerMasked)
    return found


@dataclass(frozen=True, kw_only=True)
class TopKASTPP(TopKAST):
    """TopKAST* with PowerPropagation: weights are stored as phi with theta = phi |phi|^(a - 1), so large ones learn faster."""

    about: ClassVar[About] = About(
        name="topkast+pp",
        year=2021,
        family="fixed budget, sparse to sparse",
        budget="budgeted",
        pruned_gradient="G * a |phi|^(a-1) inside the backward set B",
        train_flops="2 f_A + f_B",
        reference="Schwarz et al., Powerpropagation: A sparsity inducing weight reparameterisation, NeurIPS 2021",
        doc="TopKAST on weights stored as their signed root: the rich get richer.",
    )

    backward_sparsity: float = 0.0
    power: float = 1.375


@dataclass(frozen=True, kw_only=True)
class TopKASTGA(TopKAST):
    """TopKAST* with Gradient Annealing: weights of B outside A receive alpha * G, and alpha decays over the epochs."""

    about: ClassVar[About] = About(
        name="topkast+ga",
        year=2023,
        family="fixed budget, sparse to sparse",
        budget="budgeted",
        pruned_gradient="alpha * G inside the backward set B, alpha annealed",
        train_flops="2 f_A + f_B while alpha > 0, 3 f_A after",
        reference="Kundu et al., AutoSparse: Towards Automated Sparse Training of Deep Neural Networks, arXiv 2304.06941",
        doc="TopKAST whose gradients outside the active set are scaled by an annealed alpha.",
    )

    backward_sparsity: float = 0.0
    ga: GradientAnnealing | None = field(default_factory=GradientAnnealing)
