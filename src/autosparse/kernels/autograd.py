"""The differentiable functions of the kernels.

A layer runs through `layer`: in eager mode by an autograd.Function, which costs a quarter of a torch operator's call; where
torch compiles, exports or transforms a model, by the operators `autosparse::sparse_layer` and its two gradients.

The functions of the fused step hand on a *normalised value*: (raw, folded) stands for folded[0] * raw + folded[1], one
scale and offset per channel, and perhaps its ReLU; folded[2] is the mean of raw. README.md describes its gradient. `raw`
and `folded` may go nowhere but into these functions. Their tensors lie with channels last or with images last, and what they
give lies as the first that they take; `in_order` turns one into the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from autosparse.common.gradient_sums import GradientSum, open_sum_of
from autosparse.kernels import fused_layer, normalise
from autosparse.kernels.fused_layer import Norm
from autosparse.kernels.geometry import Geometry
from autosparse.kernels.layer_call import INPUT_GRADIENT, WEIGHT_GRADIENT, LayerCall
from autosparse.kernels.memory import in_kernel_order, is_eager_memory, is_images_last
from autosparse.kernels.pixels import TO_JOINED, TO_JOINED_ACTIVATED, GradientSource, Sink, Source

# ---- one layer -------------------------------------------------------------------------------------------------------


def layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry | None,
    gradient_entries: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
) -> Tensor:
    """The result of a linear layer or a convolution; the arguments are those of `LayerCall`."""
    if is_eager_memory(x, weight, bias, mask):
        call = LayerCall(weight, bias, geometry, gradient_entries, mask, sparse)
        result: Tensor = _Layer.apply(x, weight, bias, mask, call)  # type: ignore[no-untyped-call]
    else:
        result = sparse_layer(x, weight, bias, _numbers(geometry), gradient_entries, mask, list(sparse))
    return result


class _Layer(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, call: LayerCall) -> Tensor:
        ctx.call, ctx.sum = call, open_sum_of(weight)
        result = call.forward(x)
        ctx.save_for_backward(x, None if call.drop_dense_weight() else weight, mask)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *_ = ctx.saved_tensors  # refuses a weight or a mask that has changed
        call: LayerCall = ctx.call
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
        return (
            call.input_gradient(grad, x) if for_x else None,
            _weight_gradient(call, grad, x, ctx.sum) if for_weight else None,
            call.bias_gradient(grad) if for_bias else None,
            None,
            None,
        )


def _weight_gradient(call: LayerCall, grad: Tensor, x: Tensor, gradient_sum: GradientSum | None) -> Tensor | None:
    if gradient_sum is None:
        return call.weight_gradient(grad, x)
    gradient_sum.total = call.weight_gradient(grad, x, gradient_sum.total)
    return None


# ---- the same as torch operators -------------------------------------------------------------------------------------


def _numbers(geometry: Geometry | None) -> list[int]:
    """A geometry as an operator takes it; empty for a linear layer."""
    return [] if geometry is None else [*geometry.stride, *geometry.padding, *geometry.dilation, geometry.groups]


def _geometry(numbers: Sequence[int]) -> Geometry | None:
    if not numbers:
        return None
    down, across, top, left, rows, cols, groups = numbers
    return Geometry((down, across), (top, left), (rows, cols), groups)


@torch.library.custom_op("autosparse::sparse_layer", mutates_args=(), device_types="cpu")
def sparse_layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Sequence[int],
    gradient_entries: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
) -> Tensor:
    return LayerCall(weight, bias, _geometry(geometry), gradient_entries, mask, sparse).forward(x)


@sparse_layer.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Sequence[int],
    gradient_entries: str,
    mask: Tensor | None,
    sparse: Sequence[bool],
) -> Tensor:
    return LayerCall(weight, bias, _geometry(geometry), gradient_entries, mask, sparse).empty_result(x)


@torch.library.custom_op("autosparse::sparse_layer_input_gradient", mutates_args=(), device_types="cpu")
def _input_gradient_op(grad: Tensor, x: Tensor, weight: Tensor, geometry: Sequence[int], sparse: bool) -> Tensor:
    return LayerCall(weight, None, _geometry(geometry), "all", None, (sparse,) * 3).input_gradient(grad, x)


@_input_gradient_op.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, geometry: Sequence[int], sparse: bool) -> Tensor:
    return LayerCall(weight, None, _geometry(geometry), "all", None, (sparse,) * 3).empty_input_gradient(x)


@torch.library.custom_op("autosparse::sparse_layer_weight_gradient", mutates_args=(), device_types="cpu")
def _weight_gradient_op(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    geometry: Sequence[int],
    gradient_entries: str,
    mask: Tensor | None,
    sparse: bool,
) -> Tensor:
    return LayerCall(weight, None, _geometry(geometry), gradient_entries, mask, (sparse,) * 3).weight_gradient(grad, x)


@_weight_gradient_op.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    geometry: Sequence[int],
    gradient_entries: str,
    mask: Tensor | None,
    sparse: bool,
) -> Tensor:
    return LayerCall(weight, None, _geometry(geometry), gradient_entries, mask, (sparse,) * 3).empty_gradient()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, ctx.geometry, ctx.entries, mask, ctx.sparse = inputs
    ctx.save_for_backward(x, weight, mask)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, mask = ctx.saved_tensors
    geometry, sparse = ctx.geometry, ctx.sparse
    for_x = for_weight = for_bias = None
    if ctx.needs_input_grad[0]:
        for_x = _input_gradient_op(grad, x, weight, geometry, sparse[INPUT_GRADIENT])
    if ctx.needs_input_grad[1]:
        for_weight = _weight_gradient_op(grad, x, weight, geometry, ctx.entries, mask, sparse[WEIGHT_GRADIENT])
    if ctx.needs_input_grad[2]:
        for_bias = LayerCall(weight, None, _geometry(geometry), "all", None, sparse).bias_gradient(grad)
    return for_x, for_weight, for_bias, None, None, None, None


sparse_layer.register_autograd(_backward, setup_context=_save)


# ---- the fused step --------------------------------------------------------------------------------------------------


def conv_norm(x: Tensor, x_folded: Tensor | None, x_relu: bool, call: LayerCall, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    """raw, folded, and the statistics: mean, biased variance, 1 / standard deviation."""
    learned = call.weight, call.bias, norm.gamma, norm.beta
    results: tuple[Tensor, Tensor, Tensor] = _ConvNorm.apply(x, x_folded, x_relu, *learned, call, norm)  # type: ignore[no-untyped-call]
    return results


def join(raw: Tensor, folded: Tensor, other: Tensor | None, other_folded: Tensor | None, relu: bool) -> Tensor:
    """The sum of a normalised value and another one or a tensor, or the value alone, as a tensor."""
    results: Tensor = _Join.apply(raw, folded, other, other_folded, relu)  # type: ignore[no-untyped-call]
    return results


def join_conv_norm(
    before: Tensor, before_folded: Tensor, other: Tensor, other_folded: Tensor | None, relu: bool, call: LayerCall, norm: Norm
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The end of a block, and with it the first convolution of the next: their backward pass is one.

    The gradient of the block's result comes from that convolution and from the next shortcut, and is added, masked by the
    ReLU and summed while the convolution's input gradient is written. Gives the block's result, then as `conv_norm`.
    """
    learned = call.weight, call.bias, norm.gamma, norm.beta
    branches = before, before_folded, other, other_folded
    results: tuple[Tensor, Tensor, Tensor, Tensor] = _JoinConvNorm.apply(*branches, relu, *learned, call, norm)  # type: ignore[no-untyped-call]
    return results


def in_order(x: Tensor, images_last: bool) -> Tensor:
    """The same tensor in another order of memory; its gradient comes back in the present one."""
    turned: Tensor = _InOrder.apply(x, images_last)  # type: ignore[no-untyped-call]
    return turned


class _InOrder(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, images_last: bool) -> Tensor:
        ctx.was_images_last = is_images_last(x)
        return normalise.in_order(x, images_last)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return normalise.in_order(grad, ctx.was_images_last), None


class _ConvNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, x_folded: Tensor | None, x_relu: bool, weight: Tensor, bias: Tensor | None,
        gamma: Tensor | None, beta: Tensor | None, call: LayerCall, norm: Norm,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        raw, folded, statistics = fused_layer.forward(Source(in_kernel_order(x), x_folded, x_relu), call, norm)
        ctx.mark_non_differentiable(statistics)
        ctx.x_relu, ctx.call = x_relu, call
        ctx.save_for_backward(raw, statistics, x, x_folded, None if call.drop_dense_weight() else weight, bias, gamma)
        return raw, folded, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_folded: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        raw, statistics, x, x_folded, _weight, bias, gamma = ctx.saved_tensors  # refuses a weight that has changed
        needs = ctx.needs_input_grad
        source = Source(in_kernel_order(x), x_folded, ctx.x_relu)
        of_gamma, of_beta, of_raw = _of_norm(raw, grad, grad_folded, statistics, gamma)
        gradients = fused_layer.backward(source, ctx.call, of_raw, Sink.of_gradient(source), needs[0], needs[3])
        of_folded = None if x_folded is None else gradients.sums
        return gradients.x, of_folded, None, gradients.weight, *_of_learned(bias, of_gamma, of_beta, needs[5:7]), None, None


class _Join(Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, folded: Tensor, other: Tensor | None, other_folded: Tensor | None, relu: bool) -> Tensor:
        source = Source(in_kernel_order(raw), folded, relu)
        ctx.relu, ctx.has_other = relu, other is not None
        if other is None:
            result = normalise.materialise(source)
        else:
            result = normalise.join(source, Source(_ordered_as(other, source.raw), other_folded))
        # only the ReLU needs the result again, as torch's own does: without it the caller may write into the result
        ctx.save_for_backward(result if relu else None, raw, folded, None if other_folded is None else other, other_folded)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        result, *saved = ctx.saved_tensors
        branches = saved[0], saved[1], saved[2], saved[3]
        target = torch.empty_like(saved[0])
        sums = normalise.finish(_ordered_as(grad, target), _where_branches_join(branches, result, None, ctx.relu), target)
        of_other = target if ctx.has_other else None
        return target, sums, of_other, None if branches[-1] is None else _of_other_folded(sums), None


class _JoinConvNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, before: Tensor, before_folded: Tensor, other: Tensor, other_folded: Tensor | None, relu: bool,
        weight: Tensor, bias: Tensor | None, gamma: Tensor | None, beta: Tensor | None, call: LayerCall, norm: Norm,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        first = Source(in_kernel_order(before), before_folded, relu)
        result = normalise.join(first, Source(_ordered_as(other, first.raw), other_folded))
        raw, folded, statistics = fused_layer.forward(Source(result), call, norm)
        ctx.mark_non_differentiable(statistics)
        ctx.relu, ctx.call = relu, call
        branches = before, before_folded, None if other_folded is None else other, other_folded
        ctx.save_for_backward(result, *branches, raw, statistics, None if call.drop_dense_weight() else weight, bias, gamma)
        return result, raw, folded, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_result: Tensor, grad: Tensor, grad_folded: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        result, *saved, raw, statistics, _weight, bias, gamma = ctx.saved_tensors  # refuses a weight that has changed
        branches = saved[0], saved[1], saved[2], saved[3]
        needs = ctx.needs_input_grad
        of_gamma, of_beta, of_raw = _of_norm(raw, grad, grad_folded, statistics, gamma)
        sink = _where_branches_join(branches, result, grad_result, ctx.relu)
        gradients = fused_layer.backward(Source(result), ctx.call, of_raw, sink, True, needs[5])
        assert gradients.sums is not None
        of_branches = (
            gradients.x,
            gradients.sums,
            gradients.x,
            None if branches[-1] is None else _of_other_folded(gradients.sums),
        )
        return *of_branches, None, gradients.weight, *_of_learned(bias, of_gamma, of_beta, needs[7:9]), None, None


def _of_norm(
    raw: Tensor, grad: Tensor, grad_folded: Tensor, statistics: Tensor, gamma: Tensor | None
) -> tuple[Tensor, Tensor, GradientSource]:
    """The gradients of gamma, of beta and of the raw value."""
    of_gamma, of_beta, coefficients = normalise.fold_gradients(raw, grad_folded.contiguous(), statistics, gamma)
    return of_gamma, of_beta, GradientSource(_ordered_as(grad, raw), raw, coefficients)


def _ordered_as(tensor: Tensor, like: Tensor) -> Tensor:
    return normalise.in_order(tensor, is_images_last(like))


def _of_learned(
    bias: Tensor | None, of_gamma: Tensor, of_beta: Tensor, needs: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    # the batch norm takes every constant away, so the bias has no gradient
    of_bias = None if bias is None else torch.zeros_like(bias)
    return of_bias, of_gamma if needs[0] else None, of_beta if needs[1] else None


def _of_other_folded(sums: Tensor) -> Tensor:
    """The gradient of the other branch's `folded`: a pass's sums alone and times its raw - mean."""
    return sums[[0, 2, 2]]


def _where_branches_join(
    branches: tuple[Tensor, Tensor, Tensor | None, Tensor | None], result: Tensor | None, added: Tensor | None, relu: bool
) -> Sink:
    """The other branch has sums of its own if it is a normalised value."""
    raw, folded, other, other_folded = branches
    first = Source(in_kernel_order(raw), folded)
    return Sink(
        TO_JOINED_ACTIVATED if relu else TO_JOINED,
        first,
        None if other_folded is None or other is None else Source(_ordered_as(other, first.raw), other_folded),
        added=None if added is None else _ordered_as(added, first.raw),
        result=None if result is None else _ordered_as(result, first.raw),
    )
