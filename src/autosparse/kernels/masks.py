"""A product with a mask by the native kernels, one pass over the values."""

from __future__ import annotations

import torch
from torch import Tensor

from autosparse.kernels.library import available, kernels
from autosparse.kernels.memory import is_eager_memory, is_filled, same_order


def fits(values: Tensor, mask: Tensor, receives: Tensor | None = None) -> bool:
    """Whether the kernel can be called on these memories: plain float32 on the CPU, masks in the same order."""
    if not is_eager_memory(values, mask, receives) or values.dtype is not torch.float32 or not values.is_cpu:
        return False
    masks = (mask,) if receives is None else (mask, receives)
    alike = all(each.dtype is torch.bool and each.shape == values.shape and same_order(each, values) for each in masks)
    return alike and is_filled(values) and available()


def masked_product(
    values: Tensor, mask: Tensor, gate: float = 0.0, receives: Tensor | None = None, into: Tensor | None = None
) -> tuple[Tensor, int]:
    """The values inside the mask, times the gate where `receives` outside; how many outside are not zero.

    `into` may be the values themselves.
    """
    product = torch.empty_like(values) if into is None else into
    strays = kernels().table.masked_product(
        values.numel(), mask.data_ptr(), None if receives is None else receives.data_ptr(), values.data_ptr(), gate,
        torch.get_num_threads(), product.data_ptr(),
    )  # fmt: skip
    return product, strays
