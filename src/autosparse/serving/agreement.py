"""Whether a deployed model computes what the plain one computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# A result further off than this, as a fraction of the largest value, is a defect and not rounding.
TOLERANCE = 1e-4
# The same in narrow numbers, of the difference's length over the expected length: a defect or a bad calibration.
NARROW_TOLERANCE = {"int8": 0.5, "bfloat16": 0.1}
DEEPEST = 32  # of objects inside objects, which may refer to each other


class DiffersError(RuntimeError):
    """A way to compute a model that computes something else."""


def agree(result: Any, expected: Any, tolerance: float = TOLERANCE, depth: int = 0) -> bool:
    """Whether two results have the same structure and nearly the same numbers, in containers, dataclasses and caches too."""
    if result is expected or depth > DEEPEST:
        return True
    if isinstance(expected, Tensor):
        return isinstance(result, Tensor) and _close(result, expected, tolerance)
    if isinstance(expected, Mapping):
        same = isinstance(result, Mapping) and result.keys() == expected.keys()
        return same and all(agree(result[key], expected[key], tolerance, depth + 1) for key in expected)
    if isinstance(expected, list | tuple):
        same = isinstance(result, list | tuple) and len(result) == len(expected)
        return same and all(agree(a, b, tolerance, depth + 1) for a, b in zip(result, expected, strict=True))
    if type(result) is not type(expected):
        return False
    if hasattr(expected, "__dict__") and not isinstance(expected, type):
        return agree(vars(result), vars(expected), tolerance, depth + 1)
    return "__eq__" not in {name for kind in type(expected).__mro__[:-1] for name in vars(kind)} or _equal(result, expected)


def difference(result: Any, expected: Any) -> float:
    """By how much two results of one structure differ: the largest, over their tensors, of length over expected length."""
    pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(expected), strict=True)
    return max((relative(a, b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor)), default=0.0)


def by_how_much(off: float) -> str:
    """A difference in words."""
    return f"its outputs differ by {100 * off:.2g} % of their length on the example"


def relative(result: Tensor, expected: Tensor) -> float:
    """The length of the difference over the expected length, of what is finite."""
    if not expected.is_floating_point() or result.shape != expected.shape or not expected.numel():
        return 0.0
    finite = expected.isfinite()
    off, length = (result - expected)[finite].norm(), expected[finite].norm()
    return float(off / length) if float(length) else float(off)


def _close(result: Tensor, expected: Tensor, tolerance: float) -> bool:
    if result.shape != expected.shape or result.dtype != expected.dtype or result.layout != expected.layout:
        return False
    if expected.layout != torch.strided:
        return _close(result.to_dense(), expected.to_dense(), tolerance)
    if not (expected.is_floating_point() or expected.is_complex()):
        return bool(torch.equal(result, expected))
    if tolerance > TOLERANCE:
        return bool(result.isfinite().equal(expected.isfinite())) and relative(result, expected) <= tolerance
    finite = expected.abs()[expected.isfinite()]
    largest = float(finite.max()) if finite.numel() else 0.0
    return bool(torch.allclose(result, expected, rtol=tolerance, atol=tolerance * largest, equal_nan=True))


def _equal(result: Any, expected: Any) -> bool:
    same = result == expected
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(result)
    return bool(same.all()) if hasattr(same, "all") else bool(same)
