"""Whether a deployed model computes what the plain one computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# A result further off than this, as a fraction of the largest value, is a defect and not rounding.
TOLERANCE = 1e-4


def agree(result: Any, expected: Any) -> bool:
    """Whether two results have the same structure and nearly the same numbers."""
    if isinstance(expected, Tensor):
        if not isinstance(result, Tensor) or result.shape != expected.shape:
            return False
        if not expected.is_floating_point():
            return bool(torch.equal(result, expected))
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        return bool(torch.allclose(result, expected, rtol=TOLERANCE, atol=TOLERANCE * largest, equal_nan=True))
    if isinstance(expected, dict):
        return isinstance(result, dict) and all(key in result and agree(result[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(result) == len(expected) and all(agree(a, b) for a, b in zip(result, expected, strict=True))
    return bool(result == expected)
