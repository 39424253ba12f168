"""Does it pay? The time of a step in the user's own loop, and about what plain training would take."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from autosparse.common.ranks import leads
from autosparse.common.tensors import is_sharded
from autosparse.compute.compute import LayerPlan
from autosparse.layer import Layer
from autosparse.parametrizations import Gated

KEPT = 200  # steps whose times are remembered
ENOUGH = 3  # with fewer, the first of them, in which torch sets up its memory, would count
CALLS = 3


class StepClock:
    """Times from one optimizer step to the next: all that the user's loop does in between is part of it."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=KEPT)
        self._last: float | None = None
        self.overhead: float | None = None  # what thresholds or masks take per step, measured once

    def tick(self) -> None:
        """A step has ended."""
        now = time.perf_counter()
        if self._last is not None:
            self._seconds.append(now - self._last)
        self._last = now

    def restart(self) -> None:
        """Forget the steps so far: from here on layers may compute in another way."""
        self._seconds.clear()
        self._last = None  # what comes before the next step is not part of one

    def seconds(self) -> float | None:
        """The median step."""
        return median(self._seconds) if len(self._seconds) >= ENOUGH else None


@dataclass(frozen=True)
class Speed:
    """Milliseconds of a step as measured, and about those of plain dense training; which layers skip zeros, and why not."""

    milliseconds: float
    dense_milliseconds: float
    skipping: int
    layers: int
    reasons: dict[str, int]  # why layers are dense, and how many

    @property
    def ratio(self) -> float:
        """How many times as fast as dense."""
        return self.dense_milliseconds / self.milliseconds

    def __str__(self) -> str:
        text = (
            f"{self.milliseconds:.3g} ms per step; plain dense training would take about {self.dense_milliseconds:.3g} ms "
            f"({self.ratio:.2f} times as fast); {self.skipping} of {self.layers} layers skip zeros"
        )
        why = "; ".join(f"{count} dense: {reason}" for reason, count in self.reasons.items())
        return f"{text}; {why}" if why else text


def speed_of(clock: StepClock, layers: Sequence[Layer], plans: Sequence[LayerPlan]) -> Speed | None:
    """None before enough steps were timed."""
    seconds = clock.seconds()
    if seconds is None:
        return None
    if clock.overhead is None:
        clock.overhead = sum(map(parametrization_seconds, layers))
    planned = [plan for plan in plans if plan.passes and plan.dense_seconds is not None and plan.seconds is not None]
    gained = sum((plan.dense_seconds or 0.0) - (plan.seconds or 0.0) for plan in planned)
    dense = max(seconds + gained - clock.overhead, 0.1 * seconds)  # a rough estimate never becomes absurd
    reasons = Counter(plan.reason.partition(":")[0] for plan in plans if not plan.passes)  # without the numbers of a layer
    skipping = sum(1 for plan in plans if plan.passes)
    return Speed(1e3 * seconds, 1e3 * dense, skipping, len(plans), dict(reasons.most_common()))


def parametrization_seconds(layer: Layer) -> float:
    """What the threshold or mask of a layer takes per step; 0 where that is not known."""
    stored = layer.stored
    if not layer.attached or stored.device.type != "cpu" or is_sharded(stored):
        return 0.0
    if not isinstance(layer.parametrization, Gated):
        return 0.0
    weight = layer.weight().requires_grad_()
    gradient = torch.ones_like(weight)
    return min(_time_once(layer, weight, gradient) for _ in range(CALLS))


def _time_once(layer: Layer, weight: Tensor, gradient: Tensor) -> float:
    with torch.enable_grad():
        began = time.perf_counter()
        effective = layer.parametrization.forward(weight)
        torch.autograd.grad(effective, weight, gradient)
        return time.perf_counter() - began


def announce(speed: Speed | None) -> None:
    """One line after the first epoch, from one process."""
    if speed is not None and leads():
        print(f"autosparse: {speed}; print(sp) names every layer", file=sys.stderr)
