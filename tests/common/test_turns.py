"""Contestants take turns."""

from __future__ import annotations

import itertools
import time

from autosparse.common.turns import clock_for, take_turns


def test_every_round_calls_each_once_in_order() -> None:
    order: list[str] = []
    ticks = itertools.count()
    seconds = take_turns(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")},
        2,
        clock=lambda: float(next(ticks)),
        before=lambda key: order.append(f"before {key}"),
    )
    assert order == ["before a", "a", "before b", "b"] * 2
    assert seconds == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


def test_a_call_that_has_had_enough_is_not_called_again() -> None:
    times = {"slow": iter([0.0, 5.0] * 4), "fast": iter([0.0, 0.1] * 4)}
    running = ["slow"]

    def clock() -> float:
        return next(times[running[0]])

    def before(key: str) -> None:
        running[0] = key

    seconds = take_turns(
        {"slow": lambda: None, "fast": lambda: None}, 4, clock=clock, before=before, least_rounds=2, enough_seconds=1.0
    )
    assert {key: len(taken) for key, taken in seconds.items()} == {"slow": 2, "fast": 4}


def test_one_thread_counts_processor_time() -> None:
    assert clock_for(1) is time.thread_time
    assert clock_for(2) is time.perf_counter
