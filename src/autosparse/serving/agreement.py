"""Whether a deployed model computes what the plain one computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# A result further off than this, as a fraction of the largest value, is a defect and not rounding.
TOLERANCE = 1e-4
DEEPEST = 32  # of objects inside objects, which may refer to each other


def agree(result: Any, expected: Any, depth: int = 0) -> bool:
    """Whether two results have the same structure and nearly the same numbers, in containers, dataclasses and caches too."""
    if result is expected or depth > DEEPEST:
        return True
    if isinstance(expected, Tensor):
        return isinstance(result, Tensor) and _close(result, expected)
    if isinstance(expected, Mapping):
        same = isinstance(result, Mapping) and result.keys() == expected.keys()
        return same and all(agree(result[key], expected[key], depth + 1) for key in expected)
    if isinstance(expected, list | tuple):
        same = isinstance(result, list | tuple) and len(result) == len(expected)
        return same and all(agree(a, b, depth + 1) for a, b in zip(result, expected, strict=True))
    if type(result) is not type(expected):
        return False
    if hasattr(expected, "__dict__") and not isinstance(expected, type):
        return agree(vars(result), vars(expected), depth + 1)
    return "__eq__" not in {name for kind in type(expected).__mro__[:-1] for name in vars(kind)} or _equal(result, expected)


def _close(result: Tensor, expected: Tensor) -> bool:
    if result.shape != expected.shape or result.dtype != expected.dtype or result.layout != expected.layout:
        return False
    if expected.layout != torch.strided:
        return _close(result.to_dense(), expected.to_dense())
    if not (expected.is_floating_point() or expected.is_complex()):
        return bool(torch.equal(result, expected))
    finite = expected.abs()[expected.isfinite()]
    largest = float(finite.max()) if finite.numel() else 0.0
    return bool(torch.allclose(result, expected, rtol=TOLERANCE, atol=TOLERANCE * largest, equal_nan=True))


def _equal(result: Any, expected: Any) -> bool:
    same = result == expected
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(result)
    return bool(same.all()) if hasattr(same, "all") else bool(same)
