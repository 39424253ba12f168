"""What data is recognised by when a run is resumed: its size, its labels and a sample of its items, not every byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

SAMPLED = 64


def sampled(count: int) -> npt.NDArray[np.int64]:
    """Evenly spread places of at most 64 of `count` items."""
    return np.unique(np.linspace(0, count - 1, min(SAMPLED, count)).astype(np.int64))


def digest(parts: Iterable[str | bytes]) -> str:
    """One checksum of all parts, each with its length."""
    checksum = hashlib.sha256()
    for part in parts:
        content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        checksum.update(f"{len(content)}:".encode() + content)
    return checksum.hexdigest()
