"""Runs the fused depthwise kernels on tensors: 3x3, padding 1, stride 1 or 2, one filter per channel."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from autosparse.kernels.geometry import Geometry
from autosparse.kernels.library import kernels
from autosparse.kernels.memory import DOUBLE_WORDS, TILES, WEIGHT_SUMS, scratch
from autosparse.kernels.pixels import GradientSource, Sink, Source, slices_for
from autosparse.kernels.training_table import Depthwise

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


def forward(source: Source, weight: Tensor, geometry: Geometry, sink: Sink, target: Tensor) -> Tensor:
    """target = the convolution; returns the sums of the sink."""
    shape, using, threads = _shape(source.raw, geometry), kernels(), torch.get_num_threads()
    table, weight = using.table_of(source.dtype), weight.contiguous()
    slices = _slices(shape.images, shape.out_rows)
    native_sink, sums = sink.native(target, shape.channels, slices)
    table.depthwise_forward(
        byref(shape),
        byref(source.native()),
        weight.data_ptr(),
        threads,
        slices,
        scratch(TILES, table.depthwise_scratch(byref(shape), threads)).data_ptr(),
        byref(native_sink),
    )
    return sums


def gradients(
    source: Source, weight: Tensor, geometry: Geometry, grad: GradientSource, sink: Sink, target: Tensor, weight_target: Tensor
) -> Tensor:
    """target = the gradient of the input after the sink, weight_target that of the weight; returns the sums of the sink."""
    shape, using, threads = _shape(source.raw, geometry), kernels(), torch.get_num_threads()
    table, weight = using.table_of(source.dtype), weight.contiguous()
    slices = _slices(shape.images, shape.in_rows)
    native_sink, sums = sink.native(target, shape.channels, slices)
    padded = -shape.channels // using.lanes * -using.lanes
    weight_sums = scratch(WEIGHT_SUMS, DOUBLE_WORDS * slices * TAPS * padded)
    table.depthwise_gradients(
        byref(shape),
        byref(source.native()),
        byref(grad.native()),
        weight.data_ptr(),
        threads,
        slices,
        scratch(TILES, table.depthwise_scratch(byref(shape), threads)).data_ptr(),
        byref(native_sink),
        weight_sums.data_ptr(),
        weight_target.data_ptr(),
    )
    return sums
