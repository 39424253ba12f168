"""A convolution with the batch norm behind it, and what came before it, in as few passes over memory as its kernels allow.

Every pass of the convolution runs sparse or dense; around a dense one the other steps are passes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import checks, dense, depthwise, fused_passes
from autosparse.kernels.dense import Geometry
from autosparse.kernels.fused_passes import STORE, Ending, Gradient, Value
from autosparse.kernels.layer_call import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, LayerCall, out_shape_of
from autosparse.kernels.memory import empty_pixels


@dataclass(frozen=True)
class Norm:
    """A batch norm in training: `shift` is a guess of the mean."""

    gamma: Tensor | None
    beta: Tensor | None
    shift: Tensor
    epsilon: float


def forward(value: Value, call: LayerCall, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    """The raw result, the folded batch norm and its statistics."""
    weight, geometry = call.own_weight, _geometry(call)
    checks.common("sparse_conv2d", value.raw, weight, call.bias, call.wanted, call.mask, call.sparse)
    raw = empty_pixels(value.raw, out_shape_of(value.raw.shape, call.shape, geometry))
    if depthwise.fits(call.shape, call.bias, geometry):
        sums = depthwise.forward(value, weight, geometry, norm.shift, raw)
    elif call.sparse[FORWARD]:
        sums = fused_passes.forward(call.compressed(value.raw.shape), value, call.bias, norm.shift, raw)
    else:
        raw = dense.conv2d(fused_passes.materialise(value), weight, call.bias, geometry)
        sums = fused_passes.statistics(raw, norm.shift)
    found, folded = fused_passes.fold_statistics(raw, sums, norm.shift, norm.epsilon, norm.gamma, norm.beta)
    return raw, folded, found


def _geometry(call: LayerCall) -> Geometry:
    assert call.geometry is not None, "a convolution has a geometry"
    return call.geometry


@dataclass
class Gradients:
    """Of the input (after its ending, with the sums that were made there) and of the weight; None if not needed."""

    x: Tensor | None
    sums: Tensor | None
    weight: Tensor | None


def backward(value: Value, call: LayerCall, grad: Gradient, ending: Ending, needs_x: bool, needs_weight: bool) -> Gradients:
    x = value.raw
    sparse_x = needs_x and call.sparse[INPUT_GRADIENT]
    sparse_weight = needs_weight and call.sparse[WEIGHT_GRADIENT] and call.wanted != "all"
    target = torch.empty_like(x) if needs_x else None
    if needs_weight and target is not None and depthwise.fits(call.shape, call.bias, _geometry(call)):
        of_weight = torch.empty(call.shape)
        sums = depthwise.gradients(value, call.own_weight, _geometry(call), grad, ending, target, of_weight)
        return Gradients(target, sums, call.restrict(of_weight))
    if sparse_x and sparse_weight and call.wanted == "active" and target is not None:
        compressed = call.compressed(x.shape)
        if fused_passes.joint_gradients_fit(compressed):
            of_weight = call.empty_gradient(x)
            sums = fused_passes.joint_gradients(compressed, value, grad, ending, target, of_weight)
            return Gradients(target, sums, of_weight)
    found = Gradients(None, None, None)
    if sparse_weight:
        found.weight = call.empty_gradient(x)
        fused_passes.weight_gradient(call.pattern(x.shape), value, grad, found.weight)
    if sparse_x and target is not None:
        compressed = call.compressed(x.shape)
        if fused_passes.reaches_all(compressed):
            found.x, found.sums = target, fused_passes.input_gradient(compressed, grad, ending, target)
        elif compressed.plan.gradient_group is not None:
            fused_passes.input_gradient(compressed, grad, Ending(STORE), target.zero_())
            found.x, found.sums = target, fused_passes.finish(target, ending, target)
    rest_x, rest_weight = needs_x and found.x is None, needs_weight and found.weight is None
    if rest_x or rest_weight:
        _dense_rest(value, call, grad, ending, found, rest_x, rest_weight)
    return found


def _dense_rest(
    value: Value, call: LayerCall, grad: Gradient, ending: Ending, found: Gradients, rest_x: bool, rest_weight: bool
) -> None:
    """The gradients that no sparse pass has made, by torch."""
    plain = fused_passes.materialise(value) if rest_weight else value.raw
    of_raw = fused_passes.materialise_gradient(grad)
    weight = call.own_weight if rest_x else call.weight_or_its_shape(plain)
    of_x, of_weight = dense.conv2d_gradients(of_raw, plain, weight, _geometry(call), rest_x, rest_weight)
    if of_weight is not None:
        found.weight = call.restrict(of_weight)
    if of_x is not None:
        of_x = of_x.contiguous(memory_format=torch.channels_last)
        found.x, found.sums = of_x, fused_passes.finish(of_x, ending, of_x)
