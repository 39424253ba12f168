"""Comparing nested states bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def differences(left: Any, right: Any) -> list[str]:
    """Where two states differ by a single bit or a missing key."""
    one, other = dict(_leaves(left)), dict(_leaves(right))
    return sorted(one.keys() ^ other.keys()) + [key for key in one.keys() & other.keys() if not _same(one[key], other[key])]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else None
    if pairs is None:
        yield path, value
    else:
        for key, each in pairs:
            yield from _leaves(each, f"{path}/{key}")


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
    return bool(left == right)
