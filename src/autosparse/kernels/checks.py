"""Refuses what the sparse operators cannot take: each message says what was given, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autosparse.kernels.geometry import Geometry

ACTIVATIONS = (torch.float32, torch.bfloat16)
GRADIENT_ENTRIES = ("all", "active", "mask")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, entries: str, mask: Tensor | None, sparse: Sequence[bool]) -> None:
    if weight.dim() != 2:
        raise ValueError(f"sparse_linear: a weight of shape {tuple(weight.shape)}; it must be (out_features, in_features)")
    if x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"sparse_linear: an input of shape {tuple(x.shape)} does not fit a weight of shape {tuple(weight.shape)}; "
            f"its last dimension must be {weight.shape[1]}"
        )
    common("sparse_linear", x, weight, bias, entries, mask, sparse)


def conv2d_shape(x: Sequence[int], weight: Sequence[int], geometry: Geometry) -> tuple[int, int, int, int]:
    """The shape of the output from those of input and weight."""
    if len(weight) != 4:
        raise ValueError(f"sparse_conv2d: a weight of shape {tuple(weight)}; it must be (outputs, inputs / groups, rows, cols)")
    groups = geometry.groups
    if groups < 1 or weight[0] % groups:
        raise ValueError(f"sparse_conv2d: groups {groups} for {weight[0]} output channels; groups must divide them")
    if len(x) != 4 or x[1] != weight[1] * groups:
        raise ValueError(
            f"sparse_conv2d: an input of shape {tuple(x)} does not fit a weight of shape {tuple(weight)} with "
            f"{groups} groups; it must be (images, {weight[1] * groups}, rows, cols)"
        )
    if min(geometry.stride) < 1 or min(geometry.dilation) < 1 or min(geometry.padding) < 0:
        raise ValueError(
            f"sparse_conv2d: stride {geometry.stride}, padding {geometry.padding}, dilation {geometry.dilation}; "
            "stride and dilation must be at least 1, padding at least 0"
        )
    rows, cols = geometry.out_size(x[2:], weight[2:])
    if min(rows, cols) < 1 or min(weight[2:]) < 1:
        raise ValueError(
            f"sparse_conv2d: an input of {tuple(x[2:])} pixels with padding {geometry.padding} is smaller than the "
            f"kernel {tuple(weight[2:])} with dilation {geometry.dilation}; the output would be empty"
        )
    return x[0], weight[0], rows, cols


def common(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, entries: str, mask: Tensor | None, sparse: Sequence[bool]
) -> None:
    if x.dtype not in ACTIVATIONS:
        raise TypeError(f"{name}: the input is {x.dtype}; the sparse kernels take torch.float32 or torch.bfloat16: convert it")
    for label, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype is not torch.float32:
            raise TypeError(f"{name}: the {label} is {tensor.dtype}; the sparse kernels take torch.float32: convert it")
    for label, tensor in (("weight", weight), ("bias", bias), ("mask", mask)):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name}: the input is on {x.device}, the {label} on {tensor.device}; both must be on the CPU")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"{name}: a bias of shape {tuple(bias.shape)}; it must be ({weight.shape[0]},)")
    if entries not in GRADIENT_ENTRIES:
        raise ValueError(f"{name}: gradient_entries={entries!r}; allowed: {', '.join(GRADIENT_ENTRIES)}")
    if (mask is not None) != (entries == "mask"):
        raise ValueError(
            f"{name}: gradient_entries={entries!r} with {'a' if mask is not None else 'no'} mask; only 'mask' has one"
        )
    if mask is not None and (mask.dtype is not torch.bool or mask.shape != weight.shape):
        raise ValueError(
            f"{name}: a mask of {mask.dtype} and shape {tuple(mask.shape)}; it must be torch.bool, shape {tuple(weight.shape)}"
        )
    if len(sparse) != 3:
        raise ValueError(f"{name}: sparse has {len(sparse)} values; it needs three: forward, input and weight gradient")
