"""How much memory torch's tensors take at the worst moment of a call."""

from __future__ import annotations

import gc
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_of(call: Callable[[], object]) -> int:
    """Bytes beyond what was alive before the call, from torch's own record of its allocations."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        kept = call()
    level = highest = 0
    for event in trace.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            level += event.nbytes()
            highest = max(highest, level)
    del kept
    return highest
