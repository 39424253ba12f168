"""Pure functions of time: how alpha decays and how a sparsity target rises. Progress is clipped to [0, 1]."""

import math
from collections.abc import Callable

from autosparse.common.words import did_you_mean

# The paper's logistic decay runs over this stretch of the logistic curve (L0 = -6, L1 = 6).
_LOGIT_START, _LOGIT_END = -6.0, 6.0


def _clipped(progress: float) -> float:
    if math.isnan(progress):
        raise ValueError("progress is NaN; give the part of the run that is done, a number from 0 to 1")
    return min(1.0, max(0.0, progress))


def _logistic(x: float) -> float:
    # Only the exponential of a negative number is taken: it cannot overflow.
    small = math.exp(-abs(x))
    return 1.0 / (1.0 + small) if x >= 0.0 else small / (1.0 + small)


def cosine(progress: float) -> float:
    """Half a cosine wave from 1 to 0: (1 + cos(pi p)) / 2."""
    return 0.5 * (1.0 + math.cos(math.pi * _clipped(progress)))


def sigmoid(progress: float) -> float:
    """Mirrored logistic curve 1 - sigmoid(-6 + 12 p), from .9975 to .0025."""
    return _logistic(-(_LOGIT_START + (_LOGIT_END - _LOGIT_START) * _clipped(progress)))


def sigmoid_cosine(progress: float) -> float:
    """The paper's decay: the larger of `cosine` and `sigmoid`; it ends at .0025, never at 0."""
    return max(cosine(progress), sigmoid(progress))


def linear(progress: float) -> float:
    """Straight line from 1 to 0."""
    return 1.0 - _clipped(progress)


def constant(progress: float) -> float:
    """1 all the time."""
    _clipped(progress)
    return 1.0


def exponential(epoch: float, beta: float) -> float:
    """exp(-beta e), with e the epochs done: the paper's decay for language models."""
    if math.isnan(epoch):
        raise ValueError("epoch is NaN; give the number of epochs done")
    if not (math.isfinite(beta) and beta >= 0.0):
        raise ValueError(f"beta is {beta}; an exponential decay needs a finite beta >= 0")
    return math.exp(-beta * max(0.0, epoch))


_BY_PROGRESS: dict[str, Callable[[float], float]] = {
    "sigmoid-cosine": sigmoid_cosine,
    "cosine": cosine,
    "sigmoid": sigmoid,
    "linear": linear,
    "constant": constant,
}

ALPHA_SCHEDULES = ("sigmoid-cosine", "cosine", "sigmoid", "linear", "exponential", "constant")


def annealing(schedule: str, epoch: float, horizon: float, beta: float = 1.0) -> float:
    """Factor on alpha_0 in epoch `epoch` (from 0) of a decay over `horizon` epochs; `beta` is for "exponential"."""
    if schedule not in ALPHA_SCHEDULES:
        allowed = ", ".join(ALPHA_SCHEDULES)
        raise ValueError(f"unknown schedule {schedule!r}; allowed: {allowed}{did_you_mean(schedule, ALPHA_SCHEDULES)}")
    if not horizon > 0.0:
        raise ValueError(f"horizon is {horizon}; a decay needs a horizon of more than 0 epochs")
    if schedule == "exponential":
        return exponential(epoch, beta)
    return _BY_PROGRESS[schedule](epoch / horizon)


def cubic(progress: float, start: float, end: float) -> float:
    """Cubic ramp of GMP and of the target controller: end + (start - end)(1 - p)^3."""
    return end + (start - end) * (1.0 - _clipped(progress)) ** 3


def sigmoid_ramp(epoch: float, epochs: float, end: float, beta: float = 1.0) -> float:
    """OptG's ramp: end * sigmoid(beta (e - T/2))."""
    if not epochs > 0.0:
        raise ValueError(f"epochs is {epochs}; a ramp needs more than 0 epochs")
    return end * _logistic(beta * (epoch - epochs / 2.0))


def cosine_fraction(progress: float, start: float) -> float:
    """RigL's share of connections to replace: start/2 (1 + cos(pi t/T_end))."""
    return start * cosine(progress)
