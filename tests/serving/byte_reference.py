"""The eight-bit engine in plain NumPy: integers for integers."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from autosparse.serving.quantized.steps import Affine, QuantizedConvolution, QuantizedRegion
from autosparse.serving.steps import ConcatStep, MeanStep, PoolStep, Step

Array = np.ndarray


def multiply_add(a: Array, b: Array | float, c: Array | float) -> Array:
    """In float32 with one rounding: the product of two float32 numbers is exact in float64."""
    return (a.astype(np.float64) * np.float64(b) + np.float64(c)).astype(np.float32)


def quantize(x: Array, affine: Affine) -> Array:
    inverse = np.float32(1.0) / np.float32(affine.scale)
    return np.rint(np.clip(multiply_add(x, inverse, affine.zero_point), 0, 255)).astype(np.int64)


def dequantize(integers: Array, affine: Affine) -> Array:
    return (integers - affine.zero_point).astype(np.float32) * np.float32(affine.scale)


def windows(x: Array, step: QuantizedConvolution | PoolStep, around: int) -> tuple[Array, tuple[int, int]]:
    """[taps][images][channels][rows][cols]: what every tap of a window sees, with `around` outside of the picture."""
    (top, left), (down, across), (tall, wide) = step.padding, step.stride, step.dilation
    padded = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)), constant_values=around)
    height = (padded.shape[2] - tall * (step.kernel[0] - 1) - 1) // down + 1
    width = (padded.shape[3] - wide * (step.kernel[1] - 1) - 1) // across + 1
    seen = [
        padded[:, :, i * tall :, j * wide :][:, :, : (height - 1) * down + 1 : down, : (width - 1) * across + 1 : across]
        for i in range(step.kernel[0])
        for j in range(step.kernel[1])
    ]
    return np.stack(seen), (height, width)


def convolve(x: Array, step: QuantizedConvolution, around: int) -> Array:
    """Exact sums of products, without zero points."""
    seen, _ = windows(x, step, around)
    weight = step.weight.numpy().astype(np.int64).reshape(step.out_channels, step.weight.shape[1], -1)
    rows, columns = step.out_channels // step.groups, step.weight.shape[1]
    parts = [
        np.einsum("ock,kncyx->noyx", weight[g * rows : (g + 1) * rows], seen[:, :, g * columns : (g + 1) * columns])
        for g in range(step.groups)
    ]
    return np.concatenate(parts, 1)


def finish(sums: Array, scale: Array, bias: Array, other: tuple[Array, float] | None) -> Array:
    """By channel: scaled, added to, rounded to even, and kept within a byte."""
    result = multiply_add(sums.astype(np.float32), by_channel(scale), by_channel(bias))
    if other is not None:
        result = multiply_add(other[0].astype(np.float32), np.float32(other[1]), result)
    return np.clip(np.rint(result), 0, 255).astype(np.int64)


def by_channel(numbers: Array) -> Array:
    return numbers.astype(np.float32)[None, :, None, None]


def step_integers(step: Step, sources: list[Array], affine: dict[int, Affine]) -> Array:
    source, result = affine[step.inputs[0]], affine[step.output]
    first = sources[0]
    if isinstance(step, PoolStep) and step.largest:
        return windows(first, step, 0)[0].max(0)
    if isinstance(step, ConcatStep):
        return np.concatenate([_identity(x, affine[value], result) for value, x in zip(step.inputs, sources, strict=True)], 1)
    bias = np.zeros(first.shape[1])
    if isinstance(step, QuantizedConvolution):
        sums, scales = convolve(first, step, source.zero_point), step.scales.numpy().astype(np.float64)
        total = step.weight.numpy().astype(np.float64).reshape(step.out_channels, -1).sum(1)
        bias = np.zeros(step.out_channels) if step.bias is None else step.bias.numpy().astype(np.float64)
    elif isinstance(step, PoolStep):
        seen, _ = windows(first, step, source.zero_point)
        sums, scales, total = seen.sum(0), np.full(first.shape[1], 1 / len(seen)), np.full(first.shape[1], float(len(seen)))
    else:
        sums, scales, total = first, np.ones(first.shape[1]), np.ones(first.shape[1])
    scale = scales * source.scale / result.scale
    bias = result.zero_point - source.zero_point * total * scale + bias / result.scale
    other = None
    if len(step.inputs) > 1:
        added = affine[step.inputs[1]]
        bias = bias - added.zero_point * added.scale / result.scale
        other = sources[1], added.scale / result.scale
    return finish(sums, scale, bias, other)


def _identity(x: Array, source: Affine, result: Affine) -> Array:
    scale = np.full(x.shape[1], source.scale / result.scale)
    return finish(x, scale, result.zero_point - source.zero_point * scale, None)


def run(quantized: QuantizedRegion, inputs: list[Tensor]) -> list[Array]:
    """The region's outputs as floats."""
    affine = dict(quantized.affine)
    region = quantized.region
    integers = {value: quantize(x.numpy(), affine[value]) for value, x in zip(region.inputs, inputs, strict=True)}
    floats: dict[int, Array] = {}
    for step in region.steps:
        sources = [integers[value] for value in step.inputs]
        if isinstance(step, MeanStep):
            floats[step.output] = dequantize(sources[0], affine[step.inputs[0]]).mean((2, 3), keepdims=True, dtype=np.float64)
            continue
        integers[step.output] = step_integers(step, sources, affine)
        floats[step.output] = dequantize(integers[step.output], affine[step.output])
    return [floats[value] for value in region.outputs]
