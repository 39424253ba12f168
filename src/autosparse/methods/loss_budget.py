"""A loss budget: the density follows the gap between the run's losses and those of a dense run. Plain Python, no torch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from autosparse.common.words import require
from autosparse.methods.autotune import read_losses
from autosparse.methods.target import TargetController, refuse_difference

GAIN = 0.5  # nats that the density moves if the gap is off by the whole budget
MOST = 0.5  # nats that it moves in one epoch
AIM = 0.8  # the part of the budget that is steered to: what the last epochs add must not exceed it
HELD = 0.9  # the part of the run after which the density stays
DENSEST = 0.95

Reference = Sequence[float] | str | os.PathLike[str] | None


def reference_losses(reference: Reference) -> tuple[float, ...]:
    """The losses of a dense run, one per epoch."""
    if reference is None:
        raise ValueError(
            "max_loss_increase needs the losses of a dense run: train the dense model with "
            "autosparse.ReferenceRecorder(path), then give reference=path"
        )
    return read_losses(reference)


class LossController(TargetController):
    """After an epoch: d <- d exp(clip(GAIN (gap / aim - 1), -MOST, MOST t / T)); in between log d moves in a straight line."""

    def __init__(self, budget: float, losses: Sequence[float], epochs: int, steps_per_epoch: int, sparsest: float) -> None:
        super().__init__(sparsest, 1.0, epochs * steps_per_epoch)
        require(0.0 < budget < math.inf, "budget", budget, "a finite number above 0")
        self.budget, self.losses, self.steps_per_epoch = budget, list(losses[:epochs]), steps_per_epoch
        self.path = (0, 0.0, 0, 0.0)  # from a step and a log density to another, which stays
        self.seen: list[tuple[int, float, float, float]] = []  # epoch, loss, dense loss, density of the epoch's end

    def start(self, sparsity: float) -> None:
        super().start(sparsity)
        begin = math.log(max(1 - sparsity, 1 - self.target))
        self.path = (0, begin, self.steps_per_epoch, max(begin - MOST, math.log(1 - self.target)))

    def sparsity_at(self, step: int) -> float:
        return 1 - math.exp(self._log_density(step))

    def _log_density(self, step: int) -> float:
        first, begin, last, end = self.path
        part = 1.0 if last <= first else min(1.0, max(0.0, (step - first) / (last - first)))
        return begin + part * (end - begin)

    def insists(self, step: int, reached: float) -> bool:
        """Only at the end: the density that was found is the one that is left."""
        return step == self.total_steps and abs(reached - self.sparsity_at(step)) > self.miss

    @property
    def increase(self) -> float | None:
        """The loss over the dense run's in the last epoch that both know, less 1."""
        return self.seen[-1][1] / self.seen[-1][2] - 1 if self.seen else None

    def observe(self, epoch: int, loss: float, step: int) -> None:
        """Take the mean loss of an epoch, from 0, which ended at `step`."""
        now = self._log_density(step)
        self.path = (step, now, step, now)
        if epoch >= len(self.losses):
            return
        self.seen.append((epoch, float(loss), self.losses[epoch], math.exp(now)))
        if step + self.steps_per_epoch > HELD * self.total_steps:
            return
        gap = float(loss) / self.losses[epoch] - 1
        late = step / self.total_steps  # early, a gap is mostly a delay, which passes by itself
        move = max(-MOST, min(late * MOST, GAIN * (gap / (AIM * self.budget) - 1)))
        aim = min(math.log(DENSEST), max(math.log(1 - self.target), now + move))
        self.path = (step, now, step + self.steps_per_epoch, aim)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "budget": self.budget, "losses": self.losses}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "path": list(self.path), "seen": [list(entry) for entry in self.seen]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        refuse_difference("loss budget", state, self._identity())
        super().load_state_dict(state)
        first, begin, last, end = state["path"]
        self.path = (int(first), float(begin), int(last), float(end))
        self.seen = [(int(epoch), float(loss), float(dense), float(d)) for epoch, loss, dense, d in state["seen"]]
