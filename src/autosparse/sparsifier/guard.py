"""Protection from run-away sparsity: it watches densities and largest weights and says which layers need help."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from autosparse.common.tensors import is_sharded
from autosparse.common.warnings import warn
from autosparse.common.words import require
from autosparse.layer import Layer

Result = TypeVar("Result")

Policy = Literal["hold", "warn", "stop"]
Kind = Literal["floor", "escape", "growth"]
Action = Literal["warned", "held", "stopped"]

_ACTIONS: dict[Policy, Action] = {"hold": "held", "warn": "warned", "stop": "stopped"}

# Raw weights of ordinary layers stay near 1, small classifiers reach 3; escaped ones were seen from 17 on.
_SMALLEST_ESCAPE = 5.0
# A layer above this density is losing weights, not dying.
_GROWTH_BELOW = 0.5
# Densities may come from float32, where exactly 1 % reads as slightly less.
_ROUNDING = 1e-6
# An error names this many layers: NaN spreads to all of them within a step.
_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Limits that every layer is held to; 0 turns `floor`, `escape` or `growth` off."""

    policy: Policy = "hold"
    floor: float = 0.01
    escape: float = 10.0
    growth: float = 0.5
    every: int | None = None

    def __post_init__(self) -> None:
        require(self.policy in get_args(Policy), "policy", self.policy, ", ".join(get_args(Policy)))
        require(0.0 <= self.floor < 1.0, "floor", self.floor, "a density in [0, 1), 0 turns it off")
        escape_is_valid = self.escape == 0.0 or 1.0 < self.escape < math.inf
        require(escape_is_valid, "escape", self.escape, "a factor above 1, or 0 to turn it off")
        require(0.0 <= self.growth < 1.0, "growth", self.growth, "a factor in [0, 1), 0 turns it off")
        require(self.every is None or self.every >= 1, "every", self.every, "a number of steps of at least 1, or None")

    def interval(self, total_steps: int) -> int:
        """Steps between two checks: `every`, or an eightieth of the run, from 1 to 100."""
        return self.every if self.every is not None else min(100, max(1, round(total_steps / 80)))


@dataclass(frozen=True)
class Event:
    """One layer beyond one limit; `count` checks in a row, from `step` to `last_step`."""

    step: int
    layer: str
    kind: Kind
    value: float
    limit: float
    action: Action
    count: int = 1
    last_step: int = -1

    def __post_init__(self) -> None:
        if self.last_step < self.step:
            object.__setattr__(self, "last_step", self.step)

    def __str__(self) -> str:
        if self.kind == "floor":
            happened = f"keeps {self.value:.3%} of its weights, below the floor of {self.limit:.3%}"
            held = "its threshold was set back to the floor"
            advice = "lower the threshold decay or the target sparsity, or exclude the layer"
        elif self.kind == "growth":
            happened = f"fell to a density of {self.value:.3%} between two checks, below {self.limit:.3%}"
            held = f"its threshold was set back to {self.limit:.3%}"
            advice = "lower the threshold decay or spread it over more steps, or use a longer target_ramp"
        else:
            happened = f"has a weight of size {self.value:.4g}, beyond {self.limit:.4g}: its pruned weights are escaping"
            held = "its pruned weights get no gradient until it calms down"
            advice = "lower the threshold decay, alpha or the learning rate"
        done = {"held": held, "warned": "nothing was changed", "stopped": "training was stopped"}[self.action]
        often = f" ({self.count} checks in a row, last at step {self.last_step})" if self.count > 1 else ""
        return f"step {self.step}: layer {self.layer!r} {happened}; {done}{often}. To avoid it: {advice}."


class SparsityRunaway(RuntimeError):
    """Raised under the policy "stop"; `events` says which layers ran away."""

    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__("\n".join(map(str, events)))
        self.events = list(events)


def densities_to_restore(events: Sequence[Event]) -> dict[str, float]:
    """For every held layer the density its threshold goes back to: the larger of its floor and growth limits."""
    densities: dict[str, float] = {}
    for event in events:
        if event.action == "held" and event.kind != "escape":
            densities[event.layer] = max(event.limit, densities.get(event.layer, 0.0))
    return densities


class GuardState:
    """Pure bookkeeping of a Guard: `check` finds the layers beyond a limit, the caller acts on them."""

    def __init__(self, config: Guard) -> None:
        self.config = config
        self.events: list[Event] = []  # one for every row of consecutive checks, as it was first seen
        self.escaped: set[str] = set()  # layers whose pruned weights get no gradient (policy "hold" only)
        self._first_largest: dict[str, float] = {}
        self._last_density: dict[str, float] = {}
        self._running: dict[tuple[str, Kind], int] = {}  # of the last check: where in `events` its row stands

    def check(self, step: int, names: Sequence[str], densities: Sequence[float], largest: Sequence[float]) -> list[Event]:
        """Events of all layers at `step`, `count` 1 for a new one; under "stop" they are raised as SparsityRunaway."""
        if not len(names) == len(densities) == len(largest):
            raise ValueError(
                f"check needs one density and one max|w| per layer: got {len(names)} names, {len(densities)} densities "
                f"and {len(largest)} maxima"
            )
        # Everything is checked before anything is remembered: a refused check leaves the state as it was.
        for name, density, size in zip(names, densities, largest, strict=True):
            if not math.isfinite(size):
                raise ValueError(f"weights of layer {name!r} are not finite at step {step}")
            if not 0.0 <= density <= 1.0:
                raise ValueError(f"density of layer {name!r} is {density} at step {step}; it must lie in [0, 1]")
        events: list[Event] = []
        for name, density, size in zip(names, densities, largest, strict=True):
            events += self._check_layer(step, name, density, size)
        events = self._merged(step, events)
        if events and self.config.policy == "stop":
            raise SparsityRunaway(events)
        return events

    def _check_layer(self, step: int, name: str, density: float, size: float) -> list[Event]:
        config, action = self.config, _ACTIONS[self.config.policy]
        events = []
        if density < config.floor * (1.0 - _ROUNDING):
            events.append(Event(step, name, "floor", density, config.floor, action))
        least = config.growth * self._last_density.get(name, 0.0)
        if density < _GROWTH_BELOW and density < least * (1.0 - _ROUNDING):
            events.append(Event(step, name, "growth", density, least, action))
        # What is held has its density set by the caller now; the next fall is measured from there.
        self._last_density[name] = max(density, densities_to_restore(events).get(name, 0.0))

        first = self._first_largest.setdefault(name, size)
        if config.escape > 0.0:
            most = max(config.escape * first, _SMALLEST_ESCAPE)
            if size > most:
                events.append(Event(step, name, "escape", size, most, action))
                if config.policy == "hold":
                    self.escaped.add(name)
            elif size < most / 2.0:
                self.escaped.discard(name)
        return events

    def _merged(self, step: int, events: Sequence[Event]) -> list[Event]:
        """Count an event that the last check saw too as one more of its row."""
        running: dict[tuple[str, Kind], int] = {}
        counted = []
        for event in events:
            key = (event.layer, event.kind)
            if key in self._running:
                place = self._running[key]
                earlier = self.events[place]
                self.events[place] = replace(earlier, count=earlier.count + 1, last_step=step)
            else:
                place = len(self.events)
                self.events.append(event)
            running[key] = place
            counted.append(replace(event, count=self.events[place].count))
        self._running = running
        return counted

    def could_not_hold(self, layer: str) -> list[Event]:
        """The method has no means to hold this layer: its events of the last check count as warnings."""
        places = [place for (name, kind), place in self._running.items() if name == layer and kind != "escape"]
        for place in places:
            self.events[place] = replace(self.events[place], action="warned")
        return [self.events[place] for place in places]

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "events": [asdict(event) for event in self.events],
            "escaped": sorted(self.escaped),
            "first_largest": dict(self._first_largest),
            "last_density": dict(self._last_density),
            "running": [[layer, kind, place] for (layer, kind), place in self._running.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.events = [Event(**event) for event in state["events"]]
        self.escaped = set(state["escaped"])
        self._first_largest = dict(state["first_largest"])
        self._last_density = dict(state["last_density"])
        self._running = {(layer, kind): place for layer, kind, place in state["running"]}


def largest_weights(layers: Sequence[Layer]) -> Tensor:
    """max|w| of every layer; NaN where one weight is NaN."""
    return torch.stack([torch.stack(torch.aminmax(layer.weight())).abs().max().float() for layer in layers])


def refuse_broken(layers: Sequence[Layer], step: int) -> None:
    """Stop at weights that are NaN or infinite, with the names of their layers: no mask or count means anything then."""
    sizes = largest_weights(layers).tolist()
    broken = [repr(layer.name) for layer, size in zip(layers, sizes, strict=True) if not math.isfinite(size)]
    if broken:
        names = ", ".join(broken[:_NAMED]) + (f" and {len(broken) - _NAMED} more" if len(broken) > _NAMED else "")
        raise ValueError(
            f"weights of layer{'s' * (len(broken) > 1)} {names} are not finite at step {step}: training has diverged. "
            "Go back to the last good checkpoint, with a lower learning rate, a longer warm-up or clipped gradients"
        )


class _Training(Protocol):
    layers: list[Layer]
    step: int


def named_if_broken(sp: _Training, hook: Callable[[], Result]) -> Callable[[], Result]:
    """The hook, whose errors name the layers with weights that are NaN where that is the cause."""

    def named() -> Result:
        try:
            return hook()
        except (ValueError, RuntimeError, OverflowError):
            if not any(is_sharded(layer.stored) for layer in sp.layers):  # a rank that fails alone cannot gather weights
                refuse_broken(sp.layers, sp.step)
            raise

    return named


def watch(layers: Sequence[Layer], guard: GuardState, step: int) -> None:
    """Let the guard look at all layers in one sync, and bring back those that it holds."""
    counts = torch.stack([layer.count_active() / layer.numel for layer in layers])
    densities, sizes = torch.stack([counts.float(), largest_weights(layers)]).tolist()
    events = guard.check(step, [layer.name for layer in layers], densities, sizes)
    restore = densities_to_restore(events)
    warned = [event for event in events if event.action == "warned"]
    for layer in layers:
        if layer.name in restore and not layer.parametrization.limit_density(layer.weight(), restore[layer.name]):
            warned += guard.could_not_hold(layer.name)
    for event in warned:
        if event.count == 1:
            warn(str(event))
