"""The torch operators of the fused step: a convolution with its batch norm, the end of a residual block, and both.

They hand on a *normalised value*: (raw, folded) stands for folded[0] * raw + folded[1], one scale and offset a channel,
and perhaps its ReLU; folded[2] is the mean of raw. It has a gradient of its own form, which these operators give to each
other: that of `raw` is the gradient of the normalised value (before its ReLU), that of `folded` are its sums times
raw - mean and alone, in double, and nothing. An operator that made a value turns them into the raw value's gradient while
it reads them. So `raw` and `folded` may go nowhere but into these operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autosparse.kernels import fused_layer, fused_passes
from autosparse.kernels.fused_layer import ConvCall, Norm
from autosparse.kernels.fused_passes import TO_JOINED, TO_JOINED_ACTIVATED, Ending, Gradient, Value
from autosparse.kernels.operators import empty_gradient, empty_pixels, make_geometry, pixels_last


def folded_like(raw: Tensor) -> tuple[Tensor, Tensor]:
    channels = raw.shape[1]
    return raw.new_empty(3, channels, dtype=torch.float64), raw.new_empty(3, channels, dtype=torch.float64)


def nothing(like: Tensor) -> Tensor:
    """What an operator returns in place of a gradient that nobody needs."""
    return like.new_empty(0)


def of_folded(sums: Tensor, products: int = 1) -> Tensor:
    """The gradient of `folded` from a pass's sums: times raw - mean, and alone."""
    return torch.stack((sums[products], sums[0], torch.zeros_like(sums[0])))


# ---- the end of a residual block, or a normalised value made into a tensor --------------------------------------------


@torch.library.custom_op("autosparse::join", mutates_args=(), device_types="cpu")
def join_op(raw: Tensor, folded: Tensor, other: Tensor | None, other_folded: Tensor | None, relu: bool) -> Tensor:
    value = Value.of(pixels_last(raw), folded, relu)
    if other is None:
        return fused_passes.materialise(value)
    return fused_passes.join(value, Value.of(pixels_last(other), other_folded, False), relu)


@join_op.register_fake
def _(raw: Tensor, folded: Tensor, other: Tensor | None, other_folded: Tensor | None, relu: bool) -> Tensor:
    return empty_pixels(raw, raw.shape)


@torch.library.custom_op("autosparse::join_gradients", mutates_args=(), device_types="cpu")
def join_gradients_op(
    grad: Tensor, result: Tensor, raw: Tensor, folded: Tensor, other: Tensor | None, other_folded: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of both branches, which is one, and its sums."""
    target = empty_pixels(grad, grad.shape)
    ending = joined_ending(raw, folded, other, other_folded, result, None, relu)
    return target, fused_passes.finish(pixels_last(grad), ending, target)


@join_gradients_op.register_fake
def _(
    grad: Tensor, result: Tensor, raw: Tensor, folded: Tensor, other: Tensor | None, other_folded: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor]:
    return empty_pixels(grad, grad.shape), grad.new_empty(3, grad.shape[1], dtype=torch.float64)


def joined_ending(
    raw: Tensor,
    folded: Tensor,
    other: Tensor | None,
    other_folded: Tensor | None,
    result: Tensor,
    added: Tensor | None,
    relu: bool,
) -> Ending:
    """Two branches end here; `other` has sums of its own if it is a normalised value."""
    beside = None if other_folded is None or other is None else Value.of(pixels_last(other), other_folded, False)
    return Ending(
        TO_JOINED_ACTIVATED if relu else TO_JOINED,
        raw=pixels_last(raw),
        shift=folded[2].float(),
        other=None if beside is None else beside.raw,
        other_shift=None if beside is None else beside.mean,
        result=pixels_last(result),
        added=None if added is None else pixels_last(added),
    )


def _join_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    raw, folded, other, other_folded, ctx.relu = inputs
    ctx.has_other = other is not None
    ctx.save_for_backward(output, raw, folded, None if other_folded is None else other, other_folded)


def _join_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    result, raw, folded, other, other_folded = ctx.saved_tensors
    target, sums = join_gradients_op(grad, result, raw, folded, other, other_folded, ctx.relu)
    of_other = target if ctx.has_other else None
    return target, of_folded(sums), of_other, None if other_folded is None else of_folded(sums, 2), None


join_op.register_autograd(_join_backward, setup_context=_join_setup)


# ---- a convolution and its batch norm --------------------------------------------------------------------------------


@torch.library.custom_op("autosparse::conv_norm", mutates_args=(), device_types="cpu")
def conv_norm_op(
    x: Tensor,
    x_folded: Tensor | None,
    x_relu: bool,
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
) -> tuple[Tensor, Tensor, Tensor]:
    """raw, folded, and the statistics: mean, biased variance, 1 / standard deviation."""
    call = ConvCall(weight, bias, make_geometry(stride, padding, dilation, groups), wanted, mask, sparse)
    return fused_layer.forward(Value.of(pixels_last(x), x_folded, x_relu), call, Norm(gamma, beta, shift, epsilon))


@conv_norm_op.register_fake
def _(
    x: Tensor,
    x_folded: Tensor | None,
    x_relu: bool,
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
) -> tuple[Tensor, Tensor, Tensor]:
    call = ConvCall(weight, bias, make_geometry(stride, padding, dilation, groups), wanted, mask, sparse)
    raw = empty_pixels(x, call.out_shape(x))
    return (raw, *folded_like(raw))


@torch.library.custom_op("autosparse::conv_norm_gradients", mutates_args=(), device_types="cpu")
def conv_norm_gradients_op(
    grad: Tensor,
    grad_folded: Tensor,
    raw: Tensor,
    statistics: Tensor,
    x: Tensor,
    x_folded: Tensor | None,
    x_relu: bool,
    weight: Tensor,
    gamma: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    wanted: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of x, x_folded, weight, gamma and beta; `needs` says whether x and weight need one."""
    call = ConvCall(weight, None, make_geometry(stride, padding, dilation, groups), wanted, mask, sparse)
    value = Value.of(pixels_last(x), x_folded, x_relu)
    of_gamma, of_beta, coefficients = fused_passes.fold_gradients(raw, grad_folded.contiguous(), statistics, gamma)
    of_raw = Gradient(pixels_last(grad), raw, coefficients)
    found = fused_layer.backward(value, call, of_raw, Ending.at(value), needs[0], needs[1])
    sums = found.sums
    return (
        nothing(x) if found.x is None else found.x,
        nothing(statistics) if sums is None or x_folded is None else of_folded(sums),
        nothing(x) if found.weight is None else found.weight,
        of_gamma.clone(),
        of_beta.clone(),
    )


@conv_norm_gradients_op.register_fake
def _(
    grad: Tensor,
    grad_folded: Tensor,
    raw: Tensor,
    statistics: Tensor,
    x: Tensor,
    x_folded: Tensor | None,
    x_relu: bool,
    weight: Tensor,
    gamma: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    wanted: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        empty_pixels(x, x.shape) if needs[0] else nothing(x),
        nothing(statistics) if x_folded is None or not needs[0] else torch.empty_like(x_folded),
        empty_gradient(weight) if needs[1] else nothing(x),
        grad.new_empty(grad.shape[1]),
        grad.new_empty(grad.shape[1]),
    )


def _conv_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, x_folded, ctx.x_relu, weight, bias, gamma, _, _, _, *ctx.geometry, ctx.wanted, mask, ctx.sparse = inputs
    raw, _, statistics = output
    ctx.save_for_backward(raw, statistics, x, x_folded, weight, bias, gamma, mask)


def _conv_norm_backward(ctx: Any, grad: Tensor, grad_folded: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    raw, statistics, x, x_folded, weight, bias, gamma, mask = ctx.saved_tensors
    needs = [ctx.needs_input_grad[0], ctx.needs_input_grad[3]]
    of_x, of_x_folded, of_weight, of_gamma, of_beta = conv_norm_gradients_op(
        grad, grad_folded, raw, statistics, x, x_folded, ctx.x_relu, weight, gamma, *ctx.geometry,
        ctx.wanted, mask, ctx.sparse, needs,
    )  # fmt: skip
    return (
        of_x if needs[0] else None,
        of_x_folded if needs[0] and x_folded is not None else None,
        None,
        of_weight if needs[1] else None,
        None if bias is None else torch.zeros_like(bias),  # the batch norm takes every constant away
        of_gamma if ctx.needs_input_grad[5] else None,
        of_beta if ctx.needs_input_grad[6] else None,
        *[None] * 9,
    )


conv_norm_op.register_autograd(_conv_norm_backward, setup_context=_conv_norm_setup)
