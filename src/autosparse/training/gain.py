"""What a whole run gained or lost in time against a dense one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def gain_of_run(seconds: float, lines: Sequence[Mapping[str, Any]], dense_seconds: float | None) -> dict[str, Any] | None:
    """Wall time of the run and of a dense one: trained beside it, or worked out from the times of steps; None if neither is.

    The estimate replaces the steps of every epoch by dense ones; data, validation and checkpoints stay as they were.
    """
    is_measured = dense_seconds is not None
    if dense_seconds is None:
        dense_seconds = _estimate(seconds, lines)
    if dense_seconds is None or seconds <= 0:
        return None
    kind = "measured" if is_measured else "estimated"
    return {"seconds": seconds, "dense_seconds": dense_seconds, "ratio": dense_seconds / seconds, "dense": kind}


def _estimate(seconds: float, lines: Sequence[Mapping[str, Any]]) -> float | None:
    saved, before, known = 0.0, 0, False
    for line in lines:
        steps, before = line["step"] - before, line["step"]
        ours, dense = line.get("step_ms"), line.get("dense_step_ms")
        if isinstance(ours, int | float) and isinstance(dense, int | float):
            saved += steps * (dense - ours) / 1e3
            known = True
    return seconds + saved if known else None
