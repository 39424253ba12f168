"""The one way to time calls against each other: they take turns, so a slow moment of the machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Call = Callable[[], object]


def clock_for(threads: int) -> Callable[[], float]:
    """Processor time for one thread, which other programs disturb least; the wall clock for more."""
    return time.thread_time if threads == 1 else time.perf_counter


def take_turns(
    calls: Mapping[Key, Call],
    rounds: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[Key], object] | None = None,
    least_rounds: int | None = None,
    enough_seconds: float = 0.0,
) -> dict[Key, list[float]]:
    """Seconds of every call in every round; `before` runs untimed before each call.

    With `least_rounds`, a call is not repeated once it has had that many rounds and taken `enough_seconds` in total.
    """
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    for done in range(rounds):
        for key, call in calls.items():
            if least_rounds is not None and done >= least_rounds and sum(seconds[key]) >= enough_seconds:
                continue
            if before is not None:
                before(key)
            began = clock()
            call()
            seconds[key].append(clock() - began)
    return seconds
