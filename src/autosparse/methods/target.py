"""The controller of a target sparsity: when thresholds move and how far. Plain Python; `target_steering` moves them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from autosparse.common.words import require
from autosparse.schedules import cubic

MISS = 0.005  # distance from a target that is too far


def refuse_difference(what: str, saved: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a state that was saved under other settings."""
    changes = [f"{name} was {saved.get(name)!r}, is {value!r}" for name, value in settings.items() if saved.get(name) != value]
    if changes:
        raise ValueError(f"this state belongs to another {what}: {'; '.join(changes)}")


class TargetController:
    """Steers the overall sparsity along a cubic ramp: it says when and how far, the caller moves the thresholds."""

    def __init__(self, target: float, ramp: float, total_steps: int, every: int | None = None, max_decay: float = 24.0) -> None:
        require(0.0 < target < 1.0, "target", target, "(0, 1), the fraction of zeros at the end")
        require(0.0 < ramp <= 1.0, "ramp", ramp, "(0, 1], the part of the run at which the target is reached")
        require(total_steps >= 1, "total_steps", total_steps, "at least 1")
        require(every is None or every >= 1, "every", every, "at least 1, or None")
        most = "(0, 100], the most nats that the thresholds may move in a run"
        require(0.0 < max_decay <= 100.0, "max_decay", max_decay, most)
        self.target = target
        self.ramp = ramp
        self.total_steps = total_steps
        self.every = every if every is not None else min(100, max(1, round(total_steps / 80)))
        self.max_decay = max_decay
        self.miss = MISS  # distance that is too far
        self._given = target
        self.start_sparsity: float | None = None
        self.history: list[tuple[int, float, float, float]] = []  # step, sparsity on the ramp, sparsity reached, factor

    def start(self, sparsity: float) -> None:
        """Record S_i, the overall sparsity before the first step."""
        require(0.0 <= sparsity <= 1.0, "sparsity", sparsity, "[0, 1]")
        self.start_sparsity = float(sparsity)

    def aim(self, target: float, miss: float) -> None:
        """Set the sparsity to end with, where it follows from a goal in other units."""
        require(0.0 <= target < 1.0, "target", target, "[0, 1), the fraction of zeros at the end")
        self.target, self.miss = target, miss

    def due(self, step: int) -> bool:
        """Whether thresholds move after `step` optimizer steps: every `every` steps and after the last."""
        if self.start_sparsity is None or step < 1:
            return False
        return step % self.every == 0 or step == self.total_steps

    def sparsity_at(self, step: int) -> float:
        """S*(t) = S_f + (S_i - S_f)(1 - min(1, t/(ramp T)))^3, or S_f if the run starts above it."""
        if self.start_sparsity is None:
            raise RuntimeError("the target controller does not know the sparsity at the start: call start(sparsity) first")
        return cubic(step / (self.ramp * self.total_steps), min(self.start_sparsity, self.target), self.target)

    def limit(self, factor: float) -> float:
        """The factor on all thresholds' s, within [e^-d, e^d], d = max_decay * every / total_steps nats."""
        if math.isnan(factor):
            raise ValueError("the controller's factor is NaN: a weight or a threshold is not finite")
        most = self.max_decay * min(1.0, self.every / self.total_steps)
        return min(math.exp(most), max(math.exp(-most), factor))

    def insists(self, step: int, reached: float) -> bool:
        """Whether the target must be met now, whatever it takes: halfway from the ramp's end to the run's end it is late."""
        late = step >= (1 + self.ramp) / 2 * self.total_steps
        return late and abs(reached - self.target) > self.miss

    def record(self, step: int, planned: float, reached: float, factor: float) -> None:
        """Keep one move for the report."""
        self.history.append((int(step), float(planned), float(reached), float(factor)))

    def _identity(self) -> dict[str, Any]:
        named = {"target": self._given, "ramp": self.ramp, "total_steps": self.total_steps}
        return {**named, "every": self.every, "max_decay": self.max_decay}

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        history = [list(entry) for entry in self.history]
        return {**self._identity(), "start_sparsity": self.start_sparsity, "history": history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; another target, ramp, length or pace is refused."""
        refuse_difference("target controller", state, self._identity())
        start = state["start_sparsity"]
        self.start_sparsity = None if start is None else float(start)
        self.history = [(int(step), float(w), float(r), float(f)) for step, w, r, f in state["history"]]
