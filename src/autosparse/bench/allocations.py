"""How much memory torch's tensors take at the worst moment of a call."""

from __future__ import annotations

import gc
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

from autosparse.kernels.memory import kept_bytes


def peak_of(call: Callable[[], object]) -> int:
    """Bytes beyond what was alive before the call: torch's own record of its allocations, and what our kernels keep besides."""
    gc.collect()
    kept_before = kept_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        result = call()
    level = highest = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            highest = max(highest, level)
    highest += max(0, kept_bytes() - kept_before)
    del result
    return highest
