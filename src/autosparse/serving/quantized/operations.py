"""The eight-bit operations of a region's steps. Sums, bounds, mean pools and joins are products with a weight of one."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import pointer
from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import byte_table as native
from autosparse.kernels.inference_table import MAX_POOL, SPARSE, Planes
from autosparse.serving.layout import Taps, step_taps
from autosparse.serving.planar import PlanarOperations, PreparedOp, TakeSplit
from autosparse.serving.quantized.layout import ByteGrid
from autosparse.serving.quantized.steps import Affine, QuantizedConvolution
from autosparse.serving.steps import ConcatStep, PoolStep, Step

UNIT = Taps(1, ((0, 0, 0),))


@dataclass(frozen=True)
class ByteVariant:
    """How a product is computed: output channels that share their quads, and chunks of 32 pixels of a tile."""

    block: int
    tile_chunks: int

    def __str__(self) -> str:
        return f"{f'{self.block} rows ' if self.block > 1 else ''}x{self.tile_chunks}"


@dataclass(eq=False)
class ByteProduct:
    """A product of one operation: integers by output channel and column, where columns lie, and what the sums mean."""

    weight: Tensor  # (rows, columns)
    offsets: Tensor  # (rows or 1, columns)
    scale: Tensor
    bias: Tensor
    blocks: tuple[int, ...]  # that the rows can be packed in


class ByteOperations(PlanarOperations):
    """Operations on bytes or on bfloat16."""

    operation = native.ByteOp

    def __init__(self, kernels: native.ByteKernels, affine: Mapping[int, Affine], take_split: TakeSplit) -> None:
        super().__init__(take_split, kernels.number_bytes)
        self.kernels, self.affine = kernels, affine

    def of(
        self, step: Step, sources: list[Planes], target: Planes, grid: ByteGrid, variant: ByteVariant | None
    ) -> list[native.ByteOp]:
        """A step's operations; the last one makes its value."""
        if isinstance(step, PoolStep) and step.largest:
            return [self._largest(step, sources[0], target, grid)]
        if isinstance(step, ConcatStep):
            return self._concat(step, sources, target, grid)
        taps = step_taps(step) if isinstance(step, QuantizedConvolution | PoolStep) else UNIT
        ops, source = self._split(taps, sources[0], grid)
        op = native.ByteOp(kind=SPARSE, input=pointer(source), output=pointer(target), low=step.low, high=step.high)
        if len(sources) > 1:
            op.other = pointer(sources[1])
            op.other_scale = self.affine[step.inputs[1]].scale / self.affine[step.output].scale
        prepared = self.prepare(step, op, grid, variant or ByteVariant(1, self.kernels.max_chunks(1)), sources[0].channels)
        self._memory.append(prepared)
        return [*ops, prepared.op]

    def prepare(self, step: Step, old: native.ByteOp, grid: ByteGrid, variant: ByteVariant, channels: int) -> PreparedOp:
        """A product with the planes of `old`; its memory is its own, so that it can be dropped."""
        product = self.product(step, grid, channels)
        rows, memory = native.quad_rows(product.weight, product.offsets, product.scale, product.bias, variant.block)
        op = native.ByteOp.from_buffer_copy(old)
        op.weights, op.tile_vectors = rows, variant.tile_chunks
        if old.other:
            op.other = old.other
        op.input, op.output = old.input, old.output
        return PreparedOp(op, memory)

    def product(self, step: Step, grid: ByteGrid, channels: int) -> ByteProduct:
        """The integers of a step that multiplies, or adds, or averages; `channels` are those of its input."""
        if isinstance(step, QuantizedConvolution):
            return self._convolution(step, grid)
        taps = step_taps(step) if isinstance(step, PoolStep) else UNIT
        count = len(taps.places)
        weight = torch.ones(channels, count, dtype=torch.int8 if self.kernels.number_bytes == 1 else torch.bfloat16)
        offsets = torch.arange(channels)[:, None] * grid.plane_pixels + grid.places(taps, channels)
        return self._scaled(step, weight, offsets, torch.full((channels,), 1.0 / count), None, (1,))

    def _convolution(self, step: QuantizedConvolution, grid: ByteGrid) -> ByteProduct:
        per_group = step.weight.shape[1]
        places = grid.places(step_taps(step), step.in_channels)
        columns = (torch.arange(per_group)[:, None] * grid.plane_pixels + places).flatten()
        rows = step.out_channels // step.groups
        group = torch.arange(step.groups).repeat_interleave(rows)[:, None] * per_group * grid.plane_pixels
        offsets = columns + group if step.groups > 1 else columns[None]
        blocks = tuple(block for block in native.BLOCKS if step.groups == 1 or rows % block == 0)
        return self._scaled(step, step.weight.flatten(1), offsets, step.scales, step.bias, blocks)

    def _scaled(
        self, step: Step, weight: Tensor, offsets: Tensor, scales: Tensor, bias: Tensor | None, blocks: tuple[int, ...]
    ) -> ByteProduct:
        """From real numbers to bytes of the output: zero points go into the bias."""
        source, result = self.affine[step.inputs[0]], self.affine[step.output]
        scale = scales.double() * source.scale / result.scale
        total = result.zero_point - source.zero_point * weight.double().sum(1) * scale
        if bias is not None:
            total = total + bias.double() / result.scale
        if len(step.inputs) > 1 and not isinstance(step, ConcatStep):
            other = self.affine[step.inputs[1]]
            total = total - other.zero_point * other.scale / result.scale
        return ByteProduct(weight, offsets, scale, total, blocks)

    def _concat(self, step: ConcatStep, sources: list[Planes], target: Planes, grid: ByteGrid) -> list[native.ByteOp]:
        ops, first = [], 0
        for value, source in zip(step.inputs, sources, strict=True):
            part = ConcatStep(step.name, (value,), step.output)
            op = native.ByteOp(kind=SPARSE, input=pointer(source), output=pointer(target), first_channel=first)
            op.low, op.high = step.low, step.high
            prepared = self.prepare(part, op, grid, ByteVariant(1, self.kernels.max_chunks(1)), source.channels)
            self._memory.append(prepared)
            ops.append(prepared.op)
            first += source.channels
        return ops

    def _largest(self, step: PoolStep, source: Planes, target: Planes, grid: ByteGrid) -> native.ByteOp:
        taps = step_taps(step)
        op = native.ByteOp(kind=MAX_POOL, input=pointer(source), output=pointer(target))
        self._set_taps(op, taps, grid)
        self._set_phases(op, taps)
        self.scratch = max(self.scratch, len(taps.phases) * grid.plane_pixels + 2 * grid.lead_pixels)
        return op
