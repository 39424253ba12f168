"""The one way to time things side by side: they take turns, so a machine that is slow for a moment is slow for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Call = Callable[[], object]


def clock_for(threads: int) -> Callable[[], float]:
    """On one thread processor time, which other programs disturb least; on more the wall clock."""
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
    """Seconds of every call in every round; `before` runs untimed ahead of each.

    With `least_rounds`, a call that has had that many and taken `enough_seconds` in all is not called again.
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
