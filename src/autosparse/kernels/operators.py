"""The torch operators `autosparse::sparse_linear` and `autosparse::sparse_conv2d` with their gradients.

They take the dense effective weight, zeros inside. `wanted` says which weight gradient the caller needs: "all", "active"
(where the weight is not zero) or "mask" (where `mask` is true); elsewhere it is zero. `sparse` says for the forward pass,
the input gradient and the weight gradient whether it runs on the sparse kernels; the result is the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from autosparse.kernels import checks, dense, passes
from autosparse.kernels.compressed import WEIGHTS
from autosparse.kernels.dense import Geometry
from autosparse.kernels.geometry import Convolution
from autosparse.kernels.library import available
from autosparse.kernels.plans import Plan, plan_for

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = range(3)


def weight_format(weight: Tensor) -> torch.memory_format:
    """The memory order in which a weight is read and its gradient is returned."""
    last = weight.dim() == 4 and not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def ordered(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=weight_format(like))


def empty_gradient(weight: Tensor) -> Tensor:
    return torch.empty(weight.shape, dtype=weight.dtype, device=weight.device, memory_format=weight_format(weight))


def restrict(gradient: Tensor, weight: Tensor, wanted: str, mask: Tensor | None) -> Tensor:
    """A gradient made densely, with zeros where none is wanted."""
    gradient = ordered(gradient, weight)
    if wanted == "all":
        return gradient
    return gradient.mul_((weight != 0) if mask is None else mask)


def pattern_of(weight: Tensor, wanted: str, mask: Tensor | None) -> Tensor:
    return ordered(weight, weight) if mask is None or wanted != "mask" else ordered(mask, weight)


# ---- linear ----------------------------------------------------------------------------------------------------------


def _linear_plan(x: Tensor, weight: Tensor) -> Plan:
    return plan_for(Convolution(1, x.shape[-1], (1, x.shape[:-1].numel()), weight.shape[0]), False)


@torch.library.custom_op("autosparse::sparse_linear", mutates_args=(), device_types="cpu")
def sparse_linear_op(
    x: Tensor, weight: Tensor, bias: Tensor | None, wanted: str, mask: Tensor | None, sparse: Sequence[bool]
) -> Tensor:
    checks.linear(x, weight, bias, wanted, mask, sparse)
    if not (available() and sparse[FORWARD]) or checks.is_empty(x, weight):
        return dense.linear(x, weight, bias)
    result = x.new_empty((*x.shape[:-1], weight.shape[0]))
    compressed = WEIGHTS.find(_linear_plan(x, weight), weight.contiguous())
    passes.forward(compressed, x.contiguous(), None if bias is None else bias.contiguous(), result)
    return result


@sparse_linear_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, wanted: str, mask: Tensor | None, sparse: Sequence[bool]) -> Tensor:
    checks.linear(x, weight, bias, wanted, mask, sparse)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.custom_op("autosparse::sparse_linear_input_gradient", mutates_args=(), device_types="cpu")
def linear_input_gradient_op(grad: Tensor, weight: Tensor, sparse: bool) -> Tensor:
    result = grad.new_empty((*grad.shape[:-1], weight.shape[1]))
    if not (available() and sparse) or checks.is_empty(grad, weight):
        return result.copy_(dense.linear_input_gradient(grad, weight))
    passes.input_gradient(WEIGHTS.find(_linear_plan(result, weight), weight.contiguous()), grad.contiguous(), result)
    return result


@linear_input_gradient_op.register_fake
def _(grad: Tensor, weight: Tensor, sparse: bool) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], weight.shape[1]))


@torch.library.custom_op("autosparse::sparse_linear_weight_gradient", mutates_args=(), device_types="cpu")
def linear_weight_gradient_op(
    grad: Tensor, x: Tensor, weight: Tensor, wanted: str, mask: Tensor | None, sparse: bool
) -> Tensor:
    if not (available() and sparse) or wanted == "all" or checks.is_empty(x, weight):
        return restrict(dense.linear_weight_gradient(grad, x), weight, wanted, mask)
    result = empty_gradient(weight)
    pattern = WEIGHTS.find(_linear_plan(x, weight), pattern_of(weight, wanted, mask))
    passes.weight_gradient(pattern, x.contiguous(), grad.contiguous(), result)
    return result


@linear_weight_gradient_op.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, wanted: str, mask: Tensor | None, sparse: bool) -> Tensor:
    return empty_gradient(weight)


def _linear_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.wanted, mask, ctx.sparse = inputs
    ctx.save_for_backward(x, weight, mask)


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, mask = ctx.saved_tensors
    for_x = for_weight = for_bias = None
    if ctx.needs_input_grad[0]:
        for_x = linear_input_gradient_op(grad, weight, ctx.sparse[INPUT_GRADIENT])
    if ctx.needs_input_grad[1]:
        for_weight = linear_weight_gradient_op(grad, x, weight, ctx.wanted, mask, ctx.sparse[WEIGHT_GRADIENT])
    if ctx.needs_input_grad[2]:
        for_bias = grad.reshape(grad.shape[:-1].numel(), grad.shape[-1]).sum(0)
    return for_x, for_weight, for_bias, None, None, None


sparse_linear_op.register_autograd(_linear_backward, setup_context=_linear_setup)


# ---- convolution -----------------------------------------------------------------------------------------------------


def conv_plan(x_shape: torch.Size, weight: Tensor, geometry: Geometry) -> Plan:
    return plan_for(_convolution(x_shape, weight.shape, geometry), weight_format(weight) is torch.channels_last)


@lru_cache(maxsize=1024)
def _convolution(x_shape: torch.Size, weight_shape: torch.Size, geometry: Geometry) -> Convolution:
    conv = Convolution(
        x_shape[0],
        x_shape[1],
        (x_shape[2], x_shape[3]),
        weight_shape[0],
        (weight_shape[2], weight_shape[3]),
        geometry.stride,
        geometry.padding,
        geometry.dilation,
    )
    return conv.simplified()


def make_geometry(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> Geometry:
    return Geometry((stride[0], stride[1]), (padding[0], padding[1]), (dilation[0], dilation[1]), groups)


def pixels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def empty_pixels(x: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(tuple(shape), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@torch.library.custom_op("autosparse::sparse_conv2d", mutates_args=(), device_types="cpu")
def sparse_conv2d_op(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    wanted: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
) -> Tensor:
    geometry = make_geometry(stride, padding, dilation, groups)
    result = empty_pixels(x, checks.conv2d(x, weight, bias, geometry, wanted, mask, sparse))
    if not (available() and sparse[FORWARD]) or groups != 1 or checks.is_empty(x, weight):
        return result.copy_(dense.conv2d(x, weight, bias, geometry))
    compressed = WEIGHTS.find(conv_plan(x.shape, weight, geometry), ordered(weight, weight))
    passes.forward(compressed, pixels_last(x), None if bias is None else bias.contiguous(), result)
    return result


@sparse_conv2d_op.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    wanted: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
) -> Tensor:
    geometry = make_geometry(stride, padding, dilation, groups)
    return empty_pixels(x, checks.conv2d(x, weight, bias, geometry, wanted, mask, sparse))


@torch.library.custom_op("autosparse::sparse_conv2d_input_gradient", mutates_args=(), device_types="cpu")
def conv2d_input_gradient_op(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    sparse: bool,
) -> Tensor:
    geometry = make_geometry(stride, padding, dilation, groups)
    result = empty_pixels(x, x.shape)
    if not (available() and sparse) or groups != 1 or checks.is_empty(x, weight):
        return result.copy_(dense.conv2d_input_gradient(grad, x, weight, geometry))
    compressed = WEIGHTS.find(conv_plan(x.shape, weight, geometry), ordered(weight, weight))
    passes.input_gradient(compressed, pixels_last(grad), result)
    return result


@conv2d_input_gradient_op.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    sparse: bool,
) -> Tensor:
    return empty_pixels(x, x.shape)


@torch.library.custom_op("autosparse::sparse_conv2d_weight_gradient", mutates_args=(), device_types="cpu")
def conv2d_weight_gradient_op(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    wanted: str,
    mask: Tensor | None,
    sparse: bool,
) -> Tensor:
    geometry = make_geometry(stride, padding, dilation, groups)
    if not (available() and sparse) or wanted == "all" or groups != 1 or checks.is_empty(x, weight):
        return restrict(dense.conv2d_weight_gradient(grad, x, weight, geometry), weight, wanted, mask)
    result = empty_gradient(weight)
    pattern = WEIGHTS.find(conv_plan(x.shape, weight, geometry), pattern_of(weight, wanted, mask))
    passes.weight_gradient(pattern, pixels_last(x), pixels_last(grad), result)
    return result


@conv2d_weight_gradient_op.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    wanted: str,
    mask: Tensor | None,
    sparse: bool,
) -> Tensor:
    return empty_gradient(weight)


def _conv2d_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, *ctx.geometry, ctx.wanted, mask, ctx.sparse = inputs
    ctx.save_for_backward(x, weight, mask)


def _conv2d_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, mask = ctx.saved_tensors
    for_x = for_weight = for_bias = None
    if ctx.needs_input_grad[0]:
        for_x = conv2d_input_gradient_op(grad, x, weight, *ctx.geometry, ctx.sparse[INPUT_GRADIENT])
    if ctx.needs_input_grad[1]:
        for_weight = conv2d_weight_gradient_op(grad, x, weight, *ctx.geometry, ctx.wanted, mask, ctx.sparse[WEIGHT_GRADIENT])
    if ctx.needs_input_grad[2]:
        for_bias = grad.sum(dim=(0, 2, 3))
    return (for_x, for_weight, for_bias, *[None] * 7)


sparse_conv2d_op.register_autograd(_conv2d_backward, setup_context=_conv2d_setup)
