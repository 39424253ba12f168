"""CS, Continuous Sparsification: a logit for every weight whose sigmoid sharpens into a 0-1 mask, in one or more rounds."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run, Traits, layer_parts, require
from autosparse.methods.families.learned_mask import SoftMask, harden, learned_tensor
from autosparse.methods.families.rounds import Rounds, remember, rewind
from autosparse.methods.registry import register


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


@register
class CS(Rounds):
    """One mask logit per weight, sharpened by a rising beta; rounds, rewinding and training of the ticket.

    Mask logits with a temperature that rises over each round; the ticket keeps the weights with s > 0.
    """

    about = About(
        name="cs",
        year=2020,
        family="learned budgets",
        pruned_gradient="G sigmoid(beta s) / sigmoid(s0) while soft, none in the ticket",
        train_flops="3 f_D while soft, 3 f_S for the ticket",
        reference="Savarese et al., Winning the Lottery with Continuous Sparsification, NeurIPS 2020",
    )

    s_init: float = 0.01
    final_beta: float = 200.0
    penalty_weight: float = 1e-8
    train_ticket: bool = False
    rewind_epoch: int | None = None
    rewind_only_ticket: bool = False
    dense_first: bool = False
    dense_last: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(abs(self.s_init) <= 50, f"s_init = {self.s_init}; allowed: -50 to 50, usual: -0.1 to 0.1")
        require(self.final_beta > 1, f"final_beta = {self.final_beta}; it must be above 1, where beta starts")
        require(self.penalty_weight >= 0, f"penalty_weight = {self.penalty_weight}; it must be at least 0")
        require(
            self.rewind_epoch is None or self.rewind_epoch >= 0, f"rewind_epoch = {self.rewind_epoch}; it must be at least 0"
        )
        require(
            self.rewind_epoch is None or self.traits.rounds > 1,
            "rewind_epoch needs a second round or train_ticket=True: with one round nothing is rewound",
        )
        require(
            not self.rewind_only_ticket or (self.rewind_epoch is not None and self.train_ticket),
            "rewind_only_ticket needs train_ticket=True and a rewind_epoch: there is no ticket to rewind without them",
        )

    @property
    def traits(self) -> Traits:
        # Densities start at 0 or 1 by s_init and mean little until beta has grown: nothing for the guard.
        return replace(super().traits, rounds=self.rounds + self.train_ticket, guarded=False, learned_decay=0.0)

    def check(self, sp: Run) -> None:
        require(
            self.rewind_epoch is None or self.rewind_epoch < sp.epochs,
            f"rewind_epoch = {self.rewind_epoch} lies beyond the first round of {sp.epochs} epochs",
        )

    def parametrization(self, layer: Layer, sp: Run) -> Logits:
        return Logits(layer.stored, self.s_init)

    def start(self, sp: Run) -> None:
        super().start(sp)
        for _, logits in layer_parts(sp, Logits):
            logits.soften()
            logits.logit.data.fill_(self.s_init)
            logits.beta.fill_(1.0)
        if self.rewind_epoch == 0:
            remember(sp)

    def beta(self, epoch: int, epochs: int) -> float:
        """final_beta^(e / (E - 1)), e counted in the round."""
        return float(self.final_beta ** min(1.0, epoch / max(1, epochs - 1)))

    def end_epoch(self, sp: Run, loss: float | None) -> None:
        epoch = sp.epoch + 1
        if sp.memory["round"] == 0 and epoch == self.rewind_epoch:
            remember(sp)
        if sp.memory["round"] == self.rounds - 1 and epoch >= sp.epochs:
            harden(sp)
            return
        for _, logits in layer_parts(sp, Logits):
            logits.beta.fill_(self.beta(epoch, sp.epochs))

    def begin_round(self, sp: Run, number: int) -> None:
        rounds = self.traits.rounds
        require(
            sp.epoch * rounds != sp.epochs,
            f"sparsify was given epochs={sp.epochs}, and a round has trained {sp.epoch}: since 0.2 `epochs` are those of one "
            f"round, not of all {rounds} together; give epochs={sp.epoch}",
        )
        if number == self.rounds:
            harden(sp)
        else:
            for _, logits in layer_parts(sp, Logits):
                logits.logit.data.mul_(logits.beta).clamp_max_(self.s_init)
                logits.beta.fill_(1.0)
        if self.rewind_epoch is not None and (number == self.rounds or not self.rewind_only_ticket):
            rewind(sp)

    def is_searching(self, sp: Run) -> bool:
        """Whether masks are still learned; afterwards the ticket is trained."""
        return bool(sp.memory["round"] < self.rounds)

    def at_target(self, sp: Run) -> bool:
        return super().at_target(sp) and (not self.is_searching(sp) or sp.epoch >= sp.epochs)

    def penalty(self, sp: Run) -> Tensor | float:
        if not self.is_searching(sp):
            return 0.0
        sums = [logits.soft().sum() * logits.scale for _, logits in layer_parts(sp, Logits)]
        return self.penalty_weight * torch.stack(sums).sum()

    def passes(self, density: Tensor, sp: Run) -> tuple[Tensor, Tensor, Tensor]:
        density = torch.ones_like(density) if self.is_searching(sp) else density
        return density, density, density
