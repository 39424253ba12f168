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
    zero_epoch: int | float | None = None
    horizon: int | float | None = None

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, f"alpha = {self.alpha}; allowed: 0 <= alpha <= 1 (0 is STR, 1 straight-through)")
        require(self.beta > 0, f"beta = {self.beta}; it must be above 0")
        require_moment("zero_epoch", self.zero_epoch, 0)
        require_moment("horizon", self.horizon, 1)
        self.decay(0, 1)

    def check(self, epochs: int) -> None:
        """Refuse a zero_epoch that the run never reaches."""
        if isinstance(self.zero_epoch, int) and self.zero_epoch > epochs:
            raise ValueError(f"zero_epoch = {self.zero_epoch} lies beyond the run of {epochs} epochs")

    def decay(self, epoch: float, horizon: float) -> float:
        """The factor on alpha (eq. 2 to eq. 4)."""
        return schedules.annealing(self.schedule, epoch, horizon, self.beta)

    def is_zero(self, epoch: int | float, epochs: int) -> bool:
        return self.zero_epoch is not None and epoch >= in_epochs(self.zero_epoch, epochs, isinstance(epoch, float))

    def last_epoch(self, epochs: int) -> int:
        """The epoch at which the decay has come to its end."""
        return epochs if self.horizon is None else max(1, round(in_epochs(self.horizon, epochs)))

    def at(self, epoch: int | float, epochs: int) -> float:
        """alpha of a whole epoch, counted from 0, or of a moment within one: then parts of the run are not rounded."""
        if self.is_zero(epoch, epochs):
            return 0.0
        last: float = self.last_epoch(epochs)
        if isinstance(epoch, float) and self.horizon is not None:
            last = in_epochs(self.horizon, epochs, exact=True)
        return self.alpha * self.decay(epoch, last)


def require_moment(name: str, value: int | float | None, least: int) -> None:
    """Refuse what is neither a whole epoch nor a part of the run."""
    if isinstance(value, float):
        hint = f"; for whole epochs write {name} = {int(value)}" if value >= 1 and value.is_integer() else ""
        require(
            0 < value < 1, f"{name} = {value}; allowed: a whole number of epochs, or a part of the run between 0 and 1{hint}"
        )
    else:
        require(value is None or value >= least, f"{name} = {value}; it must be at least {least}")


def in_epochs(moment: int | float, epochs: int, exact: bool = False) -> int | float:
    """A moment in epochs, whole ones unless `exact`: floats are parts of the run."""
    if not isinstance(moment, float):
        return moment
    return moment * epochs if exact else round(moment * epochs)
