"""An axis: where a value stands between its ends, and the round values to mark."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# A log axis shows small and large thresholds alike; below this ratio a linear one is easier to read.
LOG_RATIO = 50.0


@dataclass(frozen=True)
class Scale:
    """The two ends of an axis."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round values between the ends."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = max(1, len(decades) // wanted)
            factors = (1,) if len(decades) > 3 else (1, 3)
            marks = [factor * 10.0**decade for decade in decades[::every] for factor in factors]
            return [mark for mark in marks if self.low <= mark <= self.high * (1 + 1e-9)]
        step = round_step((self.high - self.low) / wanted)
        if self.whole:  # epochs and steps: no 2.5
            step = 1.0 if step < 2.0 else 5.0 if step == 2.5 else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [place * step for place in range(first, last + 1)]


def round_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5 or 5 times a power of ten that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))


def around(values: Iterable[float], low: float | None = None, high: float | None = None, log: bool = False) -> Scale:
    """A scale that holds all values, with a little room; given ends are kept unless a value lies beyond them."""
    known = sorted(values) or [0.0, 1.0]
    if log and known[0] > 0 and known[-1] / known[0] > LOG_RATIO:
        return Scale(known[0] / 1.3, known[-1] * 1.3, log=True)
    room = 0.06 * (known[-1] - known[0]) or 0.05 * abs(known[-1]) or 0.5
    bottom = known[0] - room if low is None else min(low, known[0])
    # a quantity that is never negative does not get an axis below 0
    bottom = max(0.0, bottom) if known[0] >= 0 else bottom
    top = known[-1] + room if high is None else max(high, known[-1])
    return Scale(bottom, top if top > bottom else bottom + 1.0)
