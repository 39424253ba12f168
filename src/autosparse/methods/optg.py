"""OptG: a learned score for every weight, one global threshold, a sigmoid ramp of the sparsity over the epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from autosparse import schedules
from autosparse.common.tensors import top_mask
from autosparse.common.warnings import warn
from autosparse.layer import Layer
from autosparse.methods.families.base import About, dense_like, require
from autosparse.methods.families.learned_mask import LearnedMask, learned_tensor, parts, straight_through
from autosparse.parametrizations import SparseParametrization

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


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


@dataclass(frozen=True, kw_only=True)
class OptG(LearnedMask):
    """Scores learned by gradient; at every epoch's start the globally lowest ones are pruned."""

    about: ClassVar[About] = About(
        name="optg",
        year=2022,
        family="learned during training",
        budget="budgeted",
        pruned_gradient="none (their scores receive G w)",
        train_flops="2 f_S + f_D",
        reference="Zhang et al., OptG: Optimizing Gradient-driven Criteria in Network Sparsity, arXiv 2201.12826",
        doc="One learned score a weight, one threshold for the whole network; a sigmoid ramp leads to the given sparsity.",
    )

    sparsity: float = 0.9
    beta: float = 1.0

    def __post_init__(self) -> None:
        require(0 <= self.sparsity < 1, f"sparsity = {self.sparsity}; allowed: 0 <= sparsity < 1")
        require(self.beta > 0, f"beta = {self.beta}; it must be above 0")

    def check(self, run: Sparsifier) -> None:
        reached = self.sparsity_at(run.epochs - 1, run.epochs)
        if reached < 0.99 * self.sparsity:
            advice = f"use a beta of at least {4.6 / (run.epochs / 2 - 1):.2g}" if run.epochs > 2 else "train for more epochs"
            warn(
                f"the ramp of OptG ends at a sparsity of {reached:.2%}, not {self.sparsity:.2%}: with beta = {self.beta} it "
                f"needs more than {run.epochs} epochs; {advice}"
            )

    def ramp(self, epoch: int, epochs: int) -> float:
        return schedules.sigmoid_ramp(epoch, epochs, 1.0, self.beta)

    def sparsity_at(self, epoch: int, epochs: int) -> float:
        """p sigmoid(beta (e - T/2)); 0 in the first epoch, when no score has been learned yet."""
        return self.sparsity * self.ramp(epoch, epochs) if epoch else 0.0

    def parametrization(self, layer: Layer, run: Sparsifier) -> Scored:
        return Scored(layer.stored)

    def start(self, run: Sparsifier) -> None:
        for _, part in parts(run, Scored):
            part.score.data.zero_()
            part.mask.fill_(True)

    def ready(self, run: Sparsifier) -> None:
        scores = {id(score) for score in run.thresholds()}
        if any(id(each) not in scores for group in run.learned_groups() for each in group["params"]):
            raise ValueError(
                "OptG scales the learning rate of its scores, which share an optimizer group with other parameters: "
                "make the optimizer from sp.param_groups(weight_decay=...)"
            )

    def before_step(self, run: Sparsifier) -> bool:
        # The group's lr for this one step: exact under momentum, where a scaled gradient would carry the factor of the
        # time it entered the buffer; and schedulers, which may build on the last lr, never see it.
        groups = run.learned_groups()
        run.memory["lr"] = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * self.ramp(run.epoch, run.epochs)
        return False

    def after_step(self, run: Sparsifier) -> None:
        for group, lr in zip(run.learned_groups(), run.memory.pop("lr"), strict=True):
            group["lr"] = lr

    def end_epoch(self, run: Sparsifier, loss: float | None) -> None:
        if run.epoch + 1 < run.epochs:
            self._prune(run, self.sparsity_at(run.epoch + 1, run.epochs))

    def _prune(self, run: Sparsifier, sparsity: float) -> None:
        scored = parts(run, Scored)
        scores = torch.cat([part.score.detach().reshape(-1) for _, part in scored])
        mask = top_mask(scores, scores.numel() - round(sparsity * scores.numel()))
        for (layer, part), chosen in zip(scored, torch.split(mask, [layer.numel for layer, _ in scored]), strict=True):
            part.mask.copy_(chosen.reshape(layer.shape))

    def learned_decay(self, weight_decay: float | None) -> float | None:
        return 0.0

    def passes(self, density: Tensor, run: Sparsifier) -> tuple[Tensor, Tensor, Tensor]:
        return density, density, dense_like(density)
