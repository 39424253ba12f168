"""Memory that passes write and read within one call, kept from call to call.

Allocating it anew would cost a page fault for every few kilobytes, and as its sizes follow the number of non-zeros, the
holes that it left between gradients would fit nothing else.
"""

from __future__ import annotations

import threading

from autosparse.kernels.pages import Words

_local = threading.local()

# Uses. Passes of one layer that follow each other share what they can.
TILES, CHANNEL_SUMS, WEIGHT_SUMS = "tiles", "channel_sums", "weight_sums"
TRANSPOSED, TRANSPOSED_STARTS, TRANSPOSED_COUNTS = "transposed", "transposed_starts", "transposed_counts"
DOUBLE_WORDS = 2


def scratch(use: str, words: int) -> Words:
    """At least so many words of 32 bits that belong to the calling thread until it asks again for the same use."""
    held: Words | None = getattr(_local, use, None)
    if held is None or held.count < words:
        setattr(_local, use, None)  # let go first
        held = Words(words)
        setattr(_local, use, held)
    return held


def release() -> None:
    """Give back what the calling thread holds: after a pass much larger than those to come."""
    vars(_local).clear()
