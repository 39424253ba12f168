"""Runs the fused depthwise kernels on tensors: 3x3, padding 1, stride 1 or 2, one filter a channel."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from autosparse.kernels.dense import Geometry
from autosparse.kernels.fused_passes import STATISTICS, Ending, Gradient, Sums, Value, slices_for
from autosparse.kernels.library import Depthwise, kernels
from autosparse.kernels.scratch import DOUBLE_WORDS, TILES, WEIGHT_SUMS, scratch

TAPS = 9
BLOCK_ROWS = 28  # depthwise.h: kBlockRows


def fits(weight_shape: torch.Size, bias: Tensor | None, geometry: Geometry) -> bool:
    return (
        bias is None
        and weight_shape[1:] == (1, 3, 3)
        and geometry.groups == weight_shape[0] > 1
        and geometry.padding == (1, 1)
        and geometry.dilation == (1, 1)
        and geometry.stride in ((1, 1), (2, 2))
    )


def _shape(x: Tensor, geometry: Geometry) -> Depthwise:
    images, channels, rows, cols = x.shape
    stride = geometry.stride[0]
    return Depthwise(images, rows, cols, (rows - 1) // stride + 1, (cols - 1) // stride + 1, channels, stride)


def _slices(images: int, rows: int) -> int:
    return slices_for(images * -(-rows // BLOCK_ROWS))


def forward(value: Value, weight: Tensor, geometry: Geometry, shift: Tensor, target: Tensor) -> Tensor:
    """target = the convolution; gives the sums of result - shift and of its square."""
    shape, using, threads = _shape(value.raw, geometry), kernels(), torch.get_num_threads()
    weight = weight.contiguous()
    slices = _slices(shape.images, shape.out_rows)
    sums = Sums(shape.channels, slices)
    using.table.depthwise_forward(
        byref(shape),
        byref(value.source()),
        weight.data_ptr(),
        threads,
        slices,
        scratch(TILES, using.table.depthwise_scratch(byref(shape), threads)).data_ptr(),
        byref(sums.sink(Ending(STATISTICS, shift=shift), target)),
    )
    return sums.total


def gradients(
    value: Value, weight: Tensor, geometry: Geometry, grad: Gradient, ending: Ending, target: Tensor, weight_target: Tensor
) -> Tensor:
    """target = the gradient of the input after the ending, weight_target the weight's; gives the ending's sums."""
    shape, using, threads = _shape(value.raw, geometry), kernels(), torch.get_num_threads()
    weight = weight.contiguous()
    slices = _slices(shape.images, shape.in_rows)
    sums = Sums(shape.channels, slices)
    padded = -shape.channels // using.lanes * -using.lanes
    weight_sums = scratch(WEIGHT_SUMS, DOUBLE_WORDS * slices * TAPS * padded)
    using.table.depthwise_gradients(
        byref(shape),
        byref(value.source()),
        byref(grad.source()),
        weight.data_ptr(),
        threads,
        slices,
        scratch(TILES, using.table.depthwise_scratch(byref(shape), threads)).data_ptr(),
        byref(sums.sink(ending, target)),
        weight_sums.data_ptr(),
        weight_target.data_ptr(),
    )
    return sums.total
