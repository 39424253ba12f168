"""CS, Continuous Sparsification: a logit for every weight whose sigmoid sharpens into a 0-1 mask, in one or more rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from autosparse.common.tensors import assign
from autosparse.layer import Layer
from autosparse.methods.families.base import About, dense_like, require
from autosparse.methods.families.learned_mask import LearnedMask, SoftMask, harden, learned_tensor, parts

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


class Logits(SoftMask):
    """w * sigmoid(beta s) / sigmoid(s0) while soft, w * 1{s > 0} / sigmoid(s0) once hard."""

    beta: Tensor

    def __init__(self, weight: Tensor, s_init: float) -> None:
        super().__init__(weight)
        self.logit = learned_tensor(weight, weight.shape, s_init)
        self.register_buffer("beta", torch.ones(1, dtype=self.logit.dtype, device=weight.device))
        self.scale = 1 + math.exp(-s_init)  # at the start, with beta = 1, the effective weight is the weight itself

    def soft(self) -> Tensor:
        return torch.sigmoid(self.beta * self.logit)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (self.choose(self.soft()) * self.scale).to(weight.dtype)

    def survivors(self, weight: Tensor) -> Tensor:
        return self.logit.detach() > 0


@dataclass(frozen=True, kw_only=True)
class CS(LearnedMask):
    """Mask logits with a temperature that rises over each round; the ticket keeps the weights with s > 0."""

    about: ClassVar[About] = About(
        name="cs",
        year=2020,
        family="learned during training",
        budget="learned",
        pruned_gradient="G sigmoid(beta s) / sigmoid(s0) while soft, none in the ticket",
        train_flops="3 f_D while soft, 3 f_S for the ticket",
        reference="Savarese et al., Winning the Lottery with Continuous Sparsification, NeurIPS 2020",
        doc="One mask logit a weight, sharpened by a rising beta; rounds, rewinding and training of the ticket.",
    )

    s_init: float = 0.01
    final_beta: float = 200.0
    penalty_weight: float = 1e-8
    rounds: int = 1
    train_ticket: bool = False
    rewind_epoch: int | None = None
    dense_last: bool = True

    def __post_init__(self) -> None:
        require(abs(self.s_init) <= 50, f"s_init = {self.s_init}; allowed: -50 to 50, usual: -0.1 to 0.1")
        require(self.final_beta > 1, f"final_beta = {self.final_beta}; it must be above 1, where beta starts")
        require(self.penalty_weight >= 0, f"penalty_weight = {self.penalty_weight}; it must be at least 0")
        require(self.rounds >= 1, f"rounds = {self.rounds}; it must be at least 1")
        require(
            self.rewind_epoch is None or self.rewind_epoch >= 0, f"rewind_epoch = {self.rewind_epoch}; it must be at least 0"
        )
        require(
            self.rewind_epoch is None or self.stages > 1,
            "rewind_epoch needs a second round or train_ticket=True: with one round nothing is rewound",
        )

    @property
    def stages(self) -> int:
        """Rounds of search, and one more that trains the ticket."""
        return self.rounds + self.train_ticket

    def check(self, run: Sparsifier) -> None:
        require(
            run.epochs % self.stages == 0,
            f"epochs = {run.epochs} are the epochs of all {self.stages} rounds together (the ticket's included) and must "
            f"divide by {self.stages}",
        )
        require(
            self.rewind_epoch is None or self.rewind_epoch < run.epochs // self.stages,
            f"rewind_epoch = {self.rewind_epoch} lies beyond the first round of {run.epochs // self.stages} epochs",
        )

    def parametrization(self, layer: Layer, run: Sparsifier) -> Logits:
        return Logits(layer.stored, self.s_init)

    def start(self, run: Sparsifier) -> None:
        run.memory.update(round=0, round_start=0)
        for _, part in parts(run, Logits):
            part.soften()
            part.logit.data.fill_(self.s_init)
            part.beta.fill_(1.0)
        if self.rewind_epoch == 0:
            self._remember(run)

    def beta(self, run: Sparsifier, epoch: int) -> float:
        """final_beta^(e / (E - 1)), e counted in the round."""
        last = max(1, run.epochs // self.stages - 1)
        return float(self.final_beta ** min(1.0, (epoch - run.memory["round_start"]) / last))

    def end_epoch(self, run: Sparsifier, loss: float | None) -> None:
        epoch = run.epoch + 1
        if run.memory["round"] == 0 and epoch == self.rewind_epoch:
            self._remember(run)
        if run.memory["round"] == self.rounds - 1 and epoch - run.memory["round_start"] >= run.epochs // self.stages:
            harden(run)
            return
        for _, part in parts(run, Logits):
            part.beta.fill_(self.beta(run, epoch))

    def next_round(self, run: Sparsifier) -> bool:
        if run.memory["round"] + 1 == self.stages:
            return False
        run.memory.update(round=run.memory["round"] + 1, round_start=run.epoch)
        if run.memory["round"] == self.rounds:
            harden(run)
        else:
            for _, part in parts(run, Logits):
                part.logit.data.mul_(part.beta).clamp_max_(self.s_init)
                part.beta.fill_(1.0)
        if self.rewind_epoch is not None:
            self._rewind(run)
        return True

    def detach(self, run: Sparsifier) -> None:
        harden(run)

    def _remember(self, run: Sparsifier) -> None:
        state = run.model.state_dict()
        run.memory["rewind"] = {key: value.detach().clone() for key, value in state.items() if not _of_mask(key)}

    def _rewind(self, run: Sparsifier) -> None:
        state = run.model.state_dict()
        for key, value in run.memory["rewind"].items():
            assign(state[key], value)

    def _searching(self, run: Sparsifier) -> bool:
        return bool(run.memory["round"] < self.rounds)

    def penalty(self, run: Sparsifier) -> Tensor | float:
        if not self._searching(run):
            return 0.0
        return self.penalty_weight * torch.stack([part.soft().sum() * part.scale for _, part in parts(run, Logits)]).sum()

    def guarded(self) -> bool:
        return False  # densities start at 0 or 1 by s_init and mean little until beta has grown

    def learned_decay(self, weight_decay: float | None) -> float | None:
        return 0.0

    def passes(self, density: Tensor, run: Sparsifier) -> tuple[Tensor, Tensor, Tensor]:
        seen = dense_like(density) if self._searching(run) else density
        return seen, seen, seen


def _of_mask(key: str) -> bool:
    """Logits, beta and masks are what a round has learned: they are not rewound."""
    return "parametrizations." in key and not key.endswith(".original")
