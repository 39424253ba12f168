"""How tensors lie in memory, and whether kernels may reach for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_PLAIN = frozenset({Tensor, nn.Parameter, type(None)})


def weight_format(weight: Tensor) -> torch.memory_format:
    """The memory order in which a weight is read and its gradient is returned."""
    last = weight.dim() == 4 and not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def pixels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def empty_pixels(x: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(tuple(shape), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def is_filled(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in whatever order."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def same_order(first: Tensor, second: Tensor) -> bool:
    """Whether elements follow each other alike in memory; the stride of a dimension of one element says nothing of that."""
    strides = zip(first.shape, first.stride(), second.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in strides)


def within_reach(*tensors: Tensor | None) -> bool:
    """Whether these tensors have memory here and now: they are not traced, recorded, or of a kind of their own."""
    if (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
    ):
        return False
    return _PLAIN.issuperset(map(type, tensors))
