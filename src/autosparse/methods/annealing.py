"""Gradient Annealing as an operator of its own (section 3): an alpha that decays over the epochs of a run."""

from __future__ import annotations

from dataclasses import dataclass

from autosparse import schedules
from autosparse.methods.families.base import require

DEFAULT_ALPHA = 0.75


@dataclass(frozen=True, kw_only=True)
class GradientAnnealing:
    """alpha of an epoch = alpha * decay(epoch / horizon), 0 from `zero_epoch` on; pruned weights receive alpha * G."""

    alpha: float = DEFAULT_ALPHA
    schedule: str = "sigmoid-cosine"
    beta: float = 1.0
    zero_epoch: int | None = None
    horizon: int | None = None

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, f"alpha = {self.alpha}; allowed: 0 <= alpha <= 1 (0 is STR, 1 straight-through)")
        require(self.beta > 0, f"beta = {self.beta}; it must be above 0")
        require(self.zero_epoch is None or self.zero_epoch >= 0, f"zero_epoch = {self.zero_epoch}; it must be at least 0")
        require(self.horizon is None or self.horizon > 0, f"horizon = {self.horizon}; it must be at least 1")
        self.decay(0, 1)

    def check(self, epochs: int) -> None:
        """Refuse a zero_epoch that the run never reaches."""
        if self.zero_epoch is not None and self.zero_epoch > epochs:
            raise ValueError(f"zero_epoch = {self.zero_epoch} lies beyond the run of {epochs} epochs")

    def decay(self, epoch: float, horizon: float) -> float:
        """The factor on alpha (eq. 2 to eq. 4)."""
        return schedules.annealing(self.schedule, epoch, horizon, self.beta)

    def is_zero(self, epoch: int) -> bool:
        return self.zero_epoch is not None and epoch >= self.zero_epoch

    def at(self, epoch: int, epochs: int) -> float:
        """alpha of a whole epoch, counted from 0."""
        return 0.0 if self.is_zero(epoch) else self.alpha * self.decay(epoch, self.horizon or epochs)
