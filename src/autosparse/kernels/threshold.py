"""The soft threshold by the native kernels: one pass over the weights forward, one backward.

A small layer takes longer for Python's calls than for its weights: there are few here, and the kernels are looked up directly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autosparse.kernels.library import kernels, load
from autosparse.kernels.memory import (
    CHANNEL_SUMS,
    DOUBLE_WORDS,
    LEAST_KEPT,
    is_eager,
    is_filled,
    is_plain,
    kept_like,
    same_order,
    scratch,
)

SLICE = 16384  # threshold.h: kThresholdSlice
NO_REACH = -1.0  # every weight is at least as large


def fits(weight: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernels can be called on these memories: plain float32 on the CPU, the others single numbers."""
    return is_eager() and lies_right(weight, *others)


def lies_right(weight: Tensor, *others: Tensor | None) -> bool:
    """The same, where it is known already that nothing traces or records."""
    if weight.dtype is not torch.float32 or not is_plain(weight, *others) or not weight.is_cpu or load().kernels is None:
        return False
    for other in others:
        if other is not None and other.numel() != 1:
            return False
    return weight.is_contiguous() or is_filled(weight)


def soft_threshold(weight: Tensor, threshold: float, is_trained: bool = False) -> tuple[Tensor, int]:
    """The effective weight, and how many of it are not zero; in training the memory of a large one is used again."""
    is_kept = is_trained and type(weight) is nn.Parameter and weight.numel() >= LEAST_KEPT
    effective = kept_like(weight) if is_kept else torch.empty_like(weight)
    count = load().kernels.table.soft_threshold(  # type: ignore[union-attr]
        weight.numel(), weight.data_ptr(), threshold, torch.get_num_threads(), effective.data_ptr()
    )
    return effective, count


def soft_threshold_gradients(
    weight: Tensor, grad: Tensor, threshold: float, gate: float, reach: float | None
) -> tuple[Tensor, float]:
    """The gradient that the weight receives, and the sum of its product with the weight's sign."""
    scaled, count = torch.empty_like(weight), weight.numel()
    if (grad.stride() != scaled.stride() and not same_order(grad, scaled)) or grad.dtype is not torch.float32:
        grad = torch.empty_like(weight).copy_(grad)
    sums = scratch(CHANNEL_SUMS, DOUBLE_WORDS * -(-count // SLICE))
    total = load().kernels.table.soft_threshold_gradients(  # type: ignore[union-attr]
        count, weight.data_ptr(), grad.data_ptr(), threshold, gate, NO_REACH if reach is None else reach,
        torch.get_num_threads(), scaled.data_ptr(), sums.data_ptr(),
    )  # fmt: skip
    return scaled, total


def count_above(weight: Tensor, threshold: float) -> int:
    """How many weights have a larger magnitude."""
    return int(kernels().table.count_above(weight.numel(), weight.data_ptr(), threshold, torch.get_num_threads()))
