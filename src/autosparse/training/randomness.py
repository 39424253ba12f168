"""The random state of a process as plain values, for exact resume."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int, rank: int) -> None:
    """Dropout and the like differ between ranks; everything is decided by the recipe's seed."""
    random.seed(seed + 7919 * rank)
    np.random.seed((seed + 7919 * rank) % 2**32)
    torch.manual_seed(seed + 7919 * rank)


def state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's generators."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    saved: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        saved["cuda"] = torch.cuda.get_rng_state()
    return saved


def restore(saved: dict[str, Any]) -> None:
    """Go on exactly where `state` was taken."""
    version, internal, gauss = saved["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = saved["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(saved["torch"])
    if "cuda" in saved and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])
