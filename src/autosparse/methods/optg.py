"""OptG: a learned score for every weight, one global threshold, a sigmoid ramp of the sparsity over the epochs."""

from __future__ import annotations

import torch
from torch import Tensor

from autosparse import schedules
from autosparse.common.warnings import warn
from autosparse.layer import Layer
from autosparse.methods.families.base import About, Method, Run, Traits, layer_parts, require, require_sparsity
from autosparse.methods.families.budget import top_of_all
from autosparse.methods.families.learned_mask import learned_tensor, straight_through
from autosparse.methods.registry import register
from autosparse.methods.target import MISS
from autosparse.parametrizations import SparseParametrization


class Scored(SparseParametrization):
    """w * mask with a mask that is fixed for an epoch; the score receives G * w everywhere, the weight G * mask."""

    mask: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self.score = learned_tensor(weight, weight.shape, 0.0)
        self.register_buffer("mask", torch.ones_like(weight, dtype=torch.bool, requires_grad=False))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * straight_through(self.score, self.mask).to(weight.dtype)

    def active(self, weight: Tensor) -> Tensor:
        return self.mask


@register
class OptG(Method):
    """One learned score per weight, one threshold for the whole network; a sigmoid ramp leads to the given sparsity.

    Scores learned by gradient; at every epoch's start the globally lowest ones are pruned.
    """

    about = About(
        name="optg",
        year=2022,
        family="learned budgets",
        pruned_gradient="none (their scores receive G w)",
        train_flops="2 f_S + f_D",
        reference="Zhang et al., OptG: Optimizing Gradient-driven Criteria in Network Sparsity, arXiv 2201.12826",
    )
    facts = Traits(learned_decay=0.0)

    sparsity: float = 0.9
    beta: float = 1.0
    dense_first: bool = False
    dense_last: bool = False

    def __post_init__(self) -> None:
        require_sparsity("sparsity", self.sparsity)
        require(self.beta > 0, f"beta = {self.beta}; it must be above 0")

    def check(self, sp: Run) -> None:
        reached = self.sparsity_at(sp.epochs - 1, sp.epochs)
        if reached < 0.99 * self.sparsity:
            advice = f"use a beta of at least {4.6 / (sp.epochs / 2 - 1):.2g}" if sp.epochs > 2 else "train for more epochs"
            warn(
                f"the ramp of OptG ends at a sparsity of {reached:.2%}, not {self.sparsity:.2%}: with beta = {self.beta} it "
                f"needs more than {sp.epochs} epochs; {advice}"
            )

    def ramp(self, epoch: int, epochs: int) -> float:
        return schedules.sigmoid_ramp(epoch, epochs, 1.0, self.beta)

    def sparsity_at(self, epoch: int, epochs: int) -> float:
        """p sigmoid(beta (e - T/2)); 0 in the first epoch, when no score has been learned yet."""
        return self.sparsity * self.ramp(epoch, epochs) if epoch else 0.0

    def parametrization(self, layer: Layer, sp: Run) -> Scored:
        return Scored(layer.stored)

    def start(self, sp: Run) -> None:
        for _, part in layer_parts(sp, Scored):
            part.score.data.zero_()
            part.mask.fill_(True)

    def before_step(self, sp: Run) -> bool:
        if sp.step == 0:
            self._refuse_shared_groups(sp)
        # The group's lr for this one step: exact under momentum, where a scaled gradient would carry the factor of the
        # time it entered the buffer; and schedulers, which may build on the last lr, never see it.
        groups = sp.learned_groups()
        sp.memory["lr"] = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * self.ramp(sp.epoch, sp.epochs)
        return False

    def _refuse_shared_groups(self, sp: Run) -> None:
        scores = {id(score) for score in sp.thresholds()}
        if any(id(parameter) not in scores for group in sp.learned_groups() for parameter in group["params"]):
            raise ValueError(
                "OptG scales the learning rate of its scores, which share an optimizer group with other parameters: "
                "make the optimizer from sp.param_groups(weight_decay=...)"
            )

    def after_step(self, sp: Run) -> None:
        for group, lr in zip(sp.learned_groups(), sp.memory.pop("lr"), strict=True):
            group["lr"] = lr

    def end_epoch(self, sp: Run, loss: float | None) -> None:
        if sp.epoch + 1 < sp.epochs:
            self._prune(sp, self.sparsity_at(sp.epoch + 1, sp.epochs))

    def at_target(self, sp: Run) -> bool:
        final = self.sparsity_at(sp.epochs - 1, sp.epochs)
        return self.sparsity_at(min(sp.epoch, sp.epochs - 1), sp.epochs) >= final - MISS

    def _prune(self, sp: Run, sparsity: float) -> None:
        scored = [part for _, part in layer_parts(sp, Scored)]
        total = sum(layer.numel for layer in sp.layers)
        masks = top_of_all([part.score.detach() for part in scored], total - round(sparsity * total))
        for part, mask in zip(scored, masks, strict=True):
            part.mask.copy_(mask)
