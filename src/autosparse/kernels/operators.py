"""The torch operators `autosparse::sparse_linear` and `autosparse::sparse_conv2d` with their gradients.

What torch needs to compile, export and transform a model that uses them; the passes themselves are in layer_call.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autosparse.kernels import checks
from autosparse.kernels.dense import Geometry
from autosparse.kernels.layer_call import INPUT_GRADIENT, WEIGHT_GRADIENT, LayerCall
from autosparse.kernels.memory import empty_pixels, weight_format


def make_geometry(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> Geometry:
    return Geometry((stride[0], stride[1]), (padding[0], padding[1]), (dilation[0], dilation[1]), groups)


def _empty_gradient(weight: Tensor) -> Tensor:
    return torch.empty(weight.shape, dtype=weight.dtype, device=weight.device, memory_format=weight_format(weight))


# ---- linear ----------------------------------------------------------------------------------------------------------


@torch.library.custom_op("autosparse::sparse_linear", mutates_args=(), device_types="cpu")
def sparse_linear_op(
    x: Tensor, weight: Tensor, bias: Tensor | None, wanted: str, mask: Tensor | None, sparse: Sequence[bool]
) -> Tensor:
    return LayerCall(weight, bias, None, wanted, mask, sparse).forward(x)


@sparse_linear_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, wanted: str, mask: Tensor | None, sparse: Sequence[bool]) -> Tensor:
    checks.linear(x, weight, bias, wanted, mask, sparse)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.custom_op("autosparse::sparse_linear_input_gradient", mutates_args=(), device_types="cpu")
def linear_input_gradient_op(grad: Tensor, weight: Tensor, sparse: bool) -> Tensor:
    return LayerCall(weight, None, None, "all", None, (sparse,) * 3).input_gradient(grad, grad)


@linear_input_gradient_op.register_fake
def _(grad: Tensor, weight: Tensor, sparse: bool) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], weight.shape[1]))


@torch.library.custom_op("autosparse::sparse_linear_weight_gradient", mutates_args=(), device_types="cpu")
def linear_weight_gradient_op(
    grad: Tensor, x: Tensor, weight: Tensor, wanted: str, mask: Tensor | None, sparse: bool
) -> Tensor:
    return LayerCall(weight, None, None, wanted, mask, (sparse,) * 3).weight_gradient(grad, x)


@linear_weight_gradient_op.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, wanted: str, mask: Tensor | None, sparse: bool) -> Tensor:
    return _empty_gradient(weight)


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
    return LayerCall(weight, bias, make_geometry(stride, padding, dilation, groups), wanted, mask, sparse).forward(x)


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
    shape = checks.conv2d_shape(x.shape, weight.shape, make_geometry(stride, padding, dilation, groups))
    checks.common("sparse_conv2d", x, weight, bias, wanted, mask, sparse)
    return empty_pixels(x, shape)


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
    return LayerCall(weight, None, geometry, "all", None, (sparse,) * 3).input_gradient(grad, x)


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
    return LayerCall(weight, None, geometry, wanted, mask, (sparse,) * 3).weight_gradient(grad, x)


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
    return _empty_gradient(weight)


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
