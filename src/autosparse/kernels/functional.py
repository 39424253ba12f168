"""What callers use: `sparse_linear` and `sparse_conv2d`, as torch's own functions but for weights with zeros."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from autosparse.kernels import autograd
from autosparse.kernels.geometry import Geometry

ALL_PASSES = (True, True, True)


def sparse_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    gradient_entries: str | Tensor = "all",
    sparse: Sequence[bool] = ALL_PASSES,
) -> Tensor:
    """x @ weight.T + bias. The weight gets a gradient at `gradient_entries`: "all", "active" (weight != 0) or a bool mask."""
    entries, mask = _split(gradient_entries)
    x, weight, bias, result_type = _cast(x, weight, bias)
    result = autograd.layer(x, weight, bias, None, entries, mask, sparse)
    return result if result_type is None else result.to(result_type)


def sparse_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    gradient_entries: str | Tensor = "all",
    sparse: Sequence[bool] = ALL_PASSES,
    groups: int = 1,
) -> Tensor:
    """A 2d convolution with a channels_last result; `gradient_entries` as in sparse_linear. Groups are computed densely."""
    entries, mask = _split(gradient_entries)
    batched = x.dim() != 3
    if not batched:
        x = x.unsqueeze(0)
    geometry, (down, across) = Geometry.of(weight.shape[2:], stride, padding, dilation, groups)
    if down or across:
        x = F.pad(x, (0, across, 0, down))
    x, weight, bias, result_type = _cast(x, weight, bias)
    result = autograd.layer(x, weight, bias, geometry, entries, mask, sparse)
    result = result if result_type is None else result.to(result_type)
    return result if batched else result.squeeze(0)


def _split(gradient_entries: str | Tensor) -> tuple[str, Tensor | None]:
    return ("mask", gradient_entries) if isinstance(gradient_entries, Tensor) else (gradient_entries, None)


def _cast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, torch.dtype | None]:
    """Under autocast activations are bfloat16 if the kernels take them, and weights float32.

    For any other type, float16 above all, everything is float32 and the result is converted, as torch's own layers give it.
    """
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return x, weight, bias, None
    wanted = torch.get_autocast_dtype("cpu")
    dtype = wanted if wanted is torch.bfloat16 else torch.float32
    return x.to(dtype), weight.float(), None if bias is None else bias.float(), None if dtype is wanted else wanted
