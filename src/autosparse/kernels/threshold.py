"""The soft threshold by the native kernels: one pass over the weights forward, one backward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autosparse.kernels.library import available, kernels

SLICE = 16384  # threshold.h: kThresholdSlice
NO_REACH = -1.0  # every weight is at least as large


def fits(weight: Tensor, *others: Tensor | None, grad: Tensor | None = None) -> bool:
    """Whether the kernels can be called on these memories: plain float32 on the CPU, the others single numbers."""
    if torch.compiler.is_compiling():
        return False
    return (
        weight.dtype is torch.float32
        and weight.device.type == "cpu"
        and all(each is None or each.numel() == 1 for each in others)
        and available()
        and _is_dense(weight)
        and all(_has_memory(each) for each in (weight, grad, *others) if each is not None)
        and not _is_recorded()
    )


def _has_memory(tensor: Tensor) -> bool:
    """Not a subclass, and not what torch.func puts in the place of a tensor."""
    return type(tensor) in (Tensor, nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _is_recorded() -> bool:
    """Whether somebody watches the operations of torch, which would not see ours."""
    return torch._C._get_tracing_state() is not None or torch._C._len_torch_dispatch_stack() > 0


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in whatever order."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _same_order(first: Tensor, second: Tensor) -> bool:
    """Whether elements follow each other alike in memory; the stride of a dimension of one element says nothing of that."""
    strides = zip(first.shape, first.stride(), second.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in strides)


def soft_threshold(weight: Tensor, threshold: float) -> Tensor:
    effective = torch.empty_like(weight)
    kernels().table.soft_threshold(weight.numel(), weight.data_ptr(), threshold, torch.get_num_threads(), effective.data_ptr())
    return effective


def soft_threshold_gradients(
    weight: Tensor, grad: Tensor, threshold: float, gate: float, reach: float | None
) -> tuple[Tensor, float]:
    """The gradient that the weight receives, and the sum of its product with the weight's sign."""
    scaled = torch.empty_like(weight)
    if not _same_order(grad, scaled) or grad.dtype is not torch.float32:
        grad = torch.empty_like(weight).copy_(grad)
    sums = torch.empty(-(-weight.numel() // SLICE), dtype=torch.float64)
    total = kernels().table.soft_threshold_gradients(
        weight.numel(), weight.data_ptr(), grad.data_ptr(), threshold, gate, NO_REACH if reach is None else reach,
        torch.get_num_threads(), scaled.data_ptr(), sums.data_ptr(),
    )  # fmt: skip
    return scaled, total


def count_above(weight: Tensor, threshold: float) -> int:
    """How many weights have a larger magnitude."""
    return int(kernels().table.count_above(weight.numel(), weight.data_ptr(), threshold, torch.get_num_threads()))
