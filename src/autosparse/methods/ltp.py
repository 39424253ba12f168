"""LTP: soft pruning by a sigmoid of w^2 - tau with a learned tau per layer and a differentiable L0 penalty; hard at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from autosparse.common.tensors import split_at, threshold_for
from autosparse.layer import Layer
from autosparse.methods.families.base import About, Method, Run, Traits, layer_parts, require
from autosparse.methods.families.learned_mask import SoftMask, harden, learned_tensor
from autosparse.methods.registry import register


class SoftPruned(SoftMask):
    """w * sigmoid((w^2 - tau) / T), T = T0 var|w|; tau is stored as `threshold` = tau / var|w|, one per layer."""

    variance: Tensor

    def __init__(self, weight: Tensor, temperature: float) -> None:
        super().__init__(weight)
        # In units of the layer's own variance one learning rate suits every layer, and any optimizer.
        self.threshold = learned_tensor(weight, (1,), 0.0)
        self.register_buffer("variance", torch.ones_like(self.threshold.data))
        self.temperature = temperature

    def soft(self, weight: Tensor) -> Tensor:
        return torch.sigmoid((weight.square() / self.variance - self.threshold) / self.temperature)

    def forward(self, weight: Tensor) -> Tensor:
        # The weight's own way through the sigmoid is dropped: dw = G * mask.
        return weight * self.choose(self.soft(weight.detach())).to(weight.dtype)

    def survivors(self, weight: Tensor) -> Tensor:
        return weight.square() / self.variance > self.threshold.detach()

    def threshold_values(self) -> Tensor:
        return (self.threshold.detach() * self.variance).clamp_min(0).sqrt()

    def start_at(self, weight: Tensor, sparsity: float) -> None:
        """The variance of |w|, and tau from the k-th value of w^2."""
        self.variance.copy_(weight.abs().var(unbiased=False).clamp_min(1e-12))
        squares = weight.detach().square() / self.variance
        self.threshold.data.copy_(split_at(squares, round(sparsity * weight.numel())))

    def limit_density(self, weight: Tensor, density: float) -> bool:
        if bool(self.hard):
            return False
        bound = threshold_for(weight.detach().square() / self.variance, density)
        self.threshold.data.clamp_max_(bound.to(self.threshold.dtype))
        return True


@register
class LTP(Method):
    """Soft pruning with one learned threshold a layer and an L0 penalty; hard masks at the end."""

    about = About(
        name="ltp",
        year=2020,
        family="learned budgets",
        pruned_gradient="G sigmoid((w^2 - tau) / T) until the masks are hard",
        train_flops="3 f_D while soft, 3 f_S after",
        reference="Azarian et al., Learned Threshold Pruning, arXiv 2003.00075",
    )
    facts = Traits(learned_decay=0.0)

    penalty_weight: float = 1e-5
    temperature: float = 1e-3
    start_sparsity: float = 0.0
    penalty_on_weights: bool = False
    hard_epoch: int | None = None
    dense_first: bool = False
    dense_last: bool = False

    def __post_init__(self) -> None:
        require(self.penalty_weight >= 0, f"penalty_weight = {self.penalty_weight}; it must be at least 0")
        require(self.temperature > 0, f"temperature = {self.temperature}; it must be above 0")
        require(0 <= self.start_sparsity < 1, f"start_sparsity = {self.start_sparsity}; allowed: 0 <= start_sparsity < 1")
        require(self.hard_epoch is None or self.hard_epoch >= 1, f"hard_epoch = {self.hard_epoch}; it must be at least 1")

    def check(self, sp: Run) -> None:
        require(
            self.hard_epoch is None or self.hard_epoch <= sp.epochs,
            f"hard_epoch = {self.hard_epoch} lies beyond the run of {sp.epochs} epochs",
        )

    def is_hard(self, sp: Run, epoch: int) -> bool:
        return epoch >= (sp.epochs if self.hard_epoch is None else self.hard_epoch)

    def parametrization(self, layer: Layer, sp: Run) -> SoftPruned:
        return SoftPruned(layer.stored, self.temperature)

    def start(self, sp: Run) -> None:
        for layer, part in layer_parts(sp, SoftPruned):
            part.soften()
            part.start_at(layer.weight(), self.start_sparsity)

    def after_step(self, sp: Run) -> None:
        for _, part in layer_parts(sp, SoftPruned):
            part.threshold.data.clamp_min_(0)

    def end_epoch(self, sp: Run, loss: float | None) -> None:
        if self.is_hard(sp, sp.epoch + 1):
            harden(sp)

    def at_target(self, sp: Run) -> bool:
        return self.is_hard(sp, sp.epoch)

    def penalty(self, sp: Run) -> Tensor | float:
        if self.is_hard(sp, sp.epoch):
            return 0.0
        sums = []
        for layer, part in layer_parts(sp, SoftPruned):
            weight = layer.stored if self.penalty_on_weights else layer.stored.detach()
            sums.append(part.soft(weight).sum())
        return self.penalty_weight * torch.stack(sums).sum()

    def passes(self, density: Tensor, sp: Run) -> tuple[Tensor, Tensor, Tensor]:
        density = density if self.is_hard(sp, sp.epoch) else torch.ones_like(density)
        return density, density, density
