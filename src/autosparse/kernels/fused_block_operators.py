"""The end of a residual block together with the first convolution of the next one.

One operator, because its backward pass is one: the gradient of the block's result comes from that convolution and from the
next shortcut, and is added, masked by the ReLU and summed while the convolution's input gradient is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autosparse.kernels import fused_layer, fused_passes
from autosparse.kernels.fused_layer import ConvCall, Norm
from autosparse.kernels.fused_operators import folded_like, joined_ending, nothing, of_folded
from autosparse.kernels.fused_passes import Gradient, Value
from autosparse.kernels.operators import empty_gradient, empty_pixels, make_geometry, pixels_last


@torch.library.custom_op("autosparse::join_conv_norm", mutates_args=(), device_types="cpu")
def join_conv_norm_op(
    before: Tensor,
    before_folded: Tensor,
    other: Tensor,
    other_folded: Tensor | None,
    relu: bool,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    shift: Tensor,
    epsilon: float,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    wanted: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The block's result; raw, folded and statistics of the convolution's batch norm."""
    first = Value.of(pixels_last(before), before_folded, relu)
    result = fused_passes.join(first, Value.of(pixels_last(other), other_folded, False), relu)
    call = ConvCall(weight, bias, make_geometry(stride, padding, dilation, groups), wanted, mask, sparse)
    return (result, *fused_layer.forward(Value(result), call, Norm(gamma, beta, shift, epsilon)))


@join_conv_norm_op.register_fake
def _(
    before: Tensor,
    before_folded: Tensor,
    other: Tensor,
    other_folded: Tensor | None,
    relu: bool,
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    shift: Tensor,
    epsilon: float,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    wanted: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    call = ConvCall(weight, bias, make_geometry(stride, padding, dilation, groups), wanted, mask, sparse)
    raw = empty_pixels(before, call.out_shape(before))
    return (empty_pixels(before, before.shape), raw, *folded_like(raw))


@torch.library.custom_op("autosparse::join_conv_norm_gradients", mutates_args=(), device_types="cpu")
def join_conv_norm_gradients_op(
    grad_result: Tensor,
    grad: Tensor,
    grad_folded: Tensor,
    result: Tensor,
    before: Tensor,
    before_folded: Tensor,
    other: Tensor | None,
    other_folded: Tensor | None,
    relu: bool,
    raw: Tensor,
    statistics: Tensor,
    weight: Tensor,
    gamma: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    wanted: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradient of both branches of the block with its sums; those of weight, gamma and beta."""
    call = ConvCall(weight, None, make_geometry(stride, padding, dilation, groups), wanted, mask, sparse)
    of_gamma, of_beta, coefficients = fused_passes.fold_gradients(raw, grad_folded.contiguous(), statistics, gamma)
    of_raw = Gradient(pixels_last(grad), raw, coefficients)
    ending = joined_ending(before, before_folded, other, other_folded, result, grad_result, relu)
    found = fused_layer.backward(Value(result), call, of_raw, ending, True, needs_weight)
    assert found.x is not None
    assert found.sums is not None
    of_weight = nothing(raw) if found.weight is None else found.weight
    return found.x, found.sums, of_weight, of_gamma.clone(), of_beta.clone()


@join_conv_norm_gradients_op.register_fake
def _(
    grad_result: Tensor,
    grad: Tensor,
    grad_folded: Tensor,
    result: Tensor,
    before: Tensor,
    before_folded: Tensor,
    other: Tensor | None,
    other_folded: Tensor | None,
    relu: bool,
    raw: Tensor,
    statistics: Tensor,
    weight: Tensor,
    gamma: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    wanted: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
    needs_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    sums = result.new_empty(3, result.shape[1], dtype=torch.float64)
    of_weight = empty_gradient(weight) if needs_weight else nothing(raw)
    channels = raw.shape[1]
    return empty_pixels(result, result.shape), sums, of_weight, raw.new_empty(channels), raw.new_empty(channels)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    before, before_folded, other, other_folded, ctx.relu, weight, bias, gamma, _, _, _, *rest = inputs
    *ctx.geometry, ctx.wanted, mask, ctx.sparse = rest
    result, raw, _, statistics = output
    branches = before, before_folded, None if other_folded is None else other, other_folded
    ctx.save_for_backward(result, *branches, raw, statistics, weight, bias, gamma, mask)


def _backward(ctx: Any, grad_result: Tensor, grad: Tensor, grad_folded: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    result, *branches, raw, statistics, weight, bias, gamma, mask = ctx.saved_tensors
    needs_weight = ctx.needs_input_grad[5]
    of_x, sums, of_weight, of_gamma, of_beta = join_conv_norm_gradients_op(
        grad_result, grad, grad_folded, result, *branches, ctx.relu, raw, statistics, weight, gamma, *ctx.geometry,
        ctx.wanted, mask, ctx.sparse, needs_weight,
    )  # fmt: skip
    return (
        of_x,
        of_folded(sums),
        of_x,
        None if branches[-1] is None else of_folded(sums, 2),
        None,
        of_weight if needs_weight else None,
        None if bias is None else torch.zeros_like(bias),  # the batch norm takes every constant away
        of_gamma if ctx.needs_input_grad[7] else None,
        of_beta if ctx.needs_input_grad[8] else None,
        *[None] * 9,
    )


join_conv_norm_op.register_autograd(_backward, setup_context=_setup)
