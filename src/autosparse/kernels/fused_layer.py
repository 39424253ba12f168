"""A convolution with the batch norm behind it, and what came before it, in as few passes over memory as its kernels allow.

Every pass of the convolution runs sparse or dense; around a dense one the other steps are passes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import checks, dense, depthwise, normalise, passes
from autosparse.kernels.geometry import Geometry
from autosparse.kernels.layer_call import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, LayerCall, out_shape_of
from autosparse.kernels.memory import empty_pixels, is_images_last
from autosparse.kernels.pixels import STATISTICS, STORE, GradientSource, Sink, Source


@dataclass(frozen=True)
class Norm:
    """A batch norm in training: `shift` is a guess of the mean."""

    gamma: Tensor | None
    beta: Tensor | None
    shift: Tensor
    epsilon: float


def forward(source: Source, call: LayerCall, norm: Norm) -> tuple[Tensor, Tensor, Tensor]:
    """The raw result, in the order of the source, the folded batch norm and its statistics."""
    weight, geometry = call.dense_weight, _geometry(call)
    checks.common("sparse_conv2d", source.raw, weight, call.bias, call.gradient_entries, call.mask, call.sparse)
    call.images_last = is_images_last(source.raw)
    raw = empty_pixels(source.raw, out_shape_of(source.raw.shape, call.shape, geometry), call.images_last)
    sink = Sink(STATISTICS, shift=norm.shift)
    if depthwise.fits(call.shape, call.bias, geometry):
        sums = depthwise.forward(source, weight, geometry, sink, raw)
    elif call.sparse[FORWARD]:
        sums = passes.forward(call.compressed(source.raw), source, call.bias, sink, raw)
    else:
        plain = normalise.materialise(source)
        result = dense.conv2d(plain, call.weight_as(plain), call.bias_as(plain), geometry)
        raw = normalise.in_order(result, call.images_last)
        sums = normalise.statistics(raw, norm.shift)
    statistics, folded = normalise.fold_statistics(raw, sums, norm.shift, norm.epsilon, norm.gamma, norm.beta)
    return raw, folded, statistics


def _geometry(call: LayerCall) -> Geometry:
    assert call.geometry is not None, "a convolution has a geometry"
    return call.geometry


@dataclass
class Gradients:
    """Of the input (after its sink, with the sums that it made) and of the weight; None if not needed."""

    x: Tensor | None = None
    sums: Tensor | None = None
    weight: Tensor | None = None


def backward(source: Source, call: LayerCall, grad: GradientSource, sink: Sink, needs_x: bool, needs_weight: bool) -> Gradients:
    """The gradients by as few passes as possible: both at once, one after the other, or by torch."""
    joint = _joint_gradients(source, call, grad, sink) if needs_x and needs_weight else None
    if joint is not None:
        return joint
    gradients, x = Gradients(), source.raw
    if needs_weight and call.sparse[WEIGHT_GRADIENT] and call.gradient_entries != "all":
        gradients.weight = call.empty_gradient()
        passes.weight_gradient(call.pattern(x), source, grad, gradients.weight)
    if needs_x and call.sparse[INPUT_GRADIENT]:
        _sparse_input_gradient(x, call, grad, sink, gradients)
    rest_x, rest_weight = needs_x and gradients.x is None, needs_weight and gradients.weight is None
    if rest_x or rest_weight:
        _dense_rest(source, call, grad, sink, gradients, rest_x, rest_weight)
    return gradients


def _joint_gradients(source: Source, call: LayerCall, grad: GradientSource, sink: Sink) -> Gradients | None:
    """Both gradients in one pass; None where no kernel makes them together."""
    x = source.raw
    if depthwise.fits(call.shape, call.bias, _geometry(call)):
        of_x, of_weight = torch.empty_like(x), torch.empty(call.shape)
        sums = depthwise.gradients(source, call.dense_weight, _geometry(call), grad, sink, of_x, of_weight)
        return Gradients(of_x, sums, call.restrict(of_weight))
    if not (call.sparse[INPUT_GRADIENT] and call.sparse[WEIGHT_GRADIENT] and call.gradient_entries == "active"):
        return None
    compressed = call.compressed(x)
    if not passes.joint_gradients_fit(compressed):
        return None
    of_x, of_weight = torch.empty_like(x), call.empty_gradient()
    return Gradients(of_x, passes.joint_gradients(compressed, source, grad, sink, of_x, of_weight), of_weight)


def _sparse_input_gradient(x: Tensor, call: LayerCall, grad: GradientSource, sink: Sink, gradients: Gradients) -> None:
    """Through the sink at once if the passes reach all pixels, else in a sweep of its own."""
    compressed, target = call.compressed(x), torch.empty_like(x)
    if passes.reaches_all(compressed):
        gradients.x, gradients.sums = target, passes.input_gradient(compressed, grad, sink, target)
    elif compressed.layout.gradient_group is not None:
        passes.input_gradient(compressed, grad, Sink(STORE), target)
        gradients.x, gradients.sums = target, normalise.finish(target, sink, target)


def _dense_rest(
    source: Source, call: LayerCall, grad: GradientSource, sink: Sink, gradients: Gradients, rest_x: bool, rest_weight: bool
) -> None:
    """The gradients that no sparse pass has made, by torch."""
    plain = normalise.materialise(source) if rest_weight else empty_pixels(source.raw, source.raw.shape)
    of_raw = normalise.materialise(grad)
    weight = call.weight_as(plain) if rest_x else call.weight_or_its_shape(plain)
    of_x, of_weight = dense.conv2d_gradients(of_raw, plain, weight, _geometry(call), rest_x, rest_weight)
    if of_weight is not None:
        gradients.weight = call.restrict(of_weight)
    if of_x is not None:
        of_x = normalise.in_order(of_x, call.images_last)
        gradients.x, gradients.sums = of_x, normalise.finish(of_x, sink, of_x)
