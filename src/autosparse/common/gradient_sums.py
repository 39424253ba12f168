"""Gradients of one weight from many calls, summed where they are computed: no second one ever lies beside the sum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


class GradientSum:
    """The sum so far; None before the first gradient."""

    total: Tensor | None = None


# By the weight's id: contexts keep their weights alive, so ids are not reused.
_OPEN: dict[int, GradientSum] = {}


@contextmanager
def sum_gradients_of(weight: Tensor) -> Iterator[GradientSum]:
    """Kernels called with this very tensor inside the context add their weight gradients here and return none to autograd."""
    gradient_sum = _OPEN[id(weight)] = GradientSum()
    try:
        yield gradient_sum
    finally:
        del _OPEN[id(weight)]


def open_sum_of(weight: Tensor) -> GradientSum | None:
    """The sum that gradients of this tensor go to, inside of a context."""
    return _OPEN.get(id(weight)) if _OPEN else None
