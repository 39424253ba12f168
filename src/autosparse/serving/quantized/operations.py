"""The eight-bit operations of a region's steps. Sums, bounds, mean pools and joins are products with a weight of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import pointer
from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import byte_table as native
from autosparse.serving.layout import Taps, step_taps
from autosparse.serving.quantized.layout import ByteGrid
from autosparse.serving.quantized.steps import Affine, QuantizedConvolution
from autosparse.serving.steps import ConcatStep, PoolStep, Step

TakeSplit = Callable[[native.BytePlanes, int, ByteGrid, int], native.BytePlanes]
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

    def pack(self, block: int) -> native.PackedQuads:
        return native.quad_rows(self.weight, self.offsets, self.scale, self.bias, block)


@dataclass(eq=False)
class PreparedBytes:
    """A product's operation and the memory it points to."""

    op: native.ByteOp
    packed: native.PackedQuads

    def retiled(self, tile_chunks: int) -> PreparedBytes:
        op = native.ByteOp.from_buffer_copy(self.op)
        op.tile_chunks = tile_chunks
        return PreparedBytes(op, self.packed)


class ByteOperations:
    """Makes operations and owns the memory they point to."""

    def __init__(self, kernels: native.ByteKernels, affine: Mapping[int, Affine], take_split: TakeSplit) -> None:
        self.kernels, self.affine, self._take_split = kernels, affine, take_split
        self.scratch = 0  # bytes
        self._memory: list[object] = []
        self._splits: dict[tuple[int, int, tuple[int, ...]], native.BytePlanes] = {}

    def load(self, outside: int, target: native.BytePlanes) -> native.ByteOp:
        return native.ByteOp(kind=native.LOAD, output=pointer(target), outside=outside)

    def store(self, outside: int, source: native.BytePlanes) -> native.ByteOp:
        return native.ByteOp(kind=native.STORE, input=pointer(source), outside=outside)

    def mean(self, outside: int, source: native.BytePlanes) -> native.ByteOp:
        return native.ByteOp(kind=native.MEAN, input=pointer(source), outside=outside)

    def of(
        self,
        step: Step,
        sources: list[native.BytePlanes],
        target: native.BytePlanes,
        grid: ByteGrid,
        variant: ByteVariant | None,
    ) -> list[native.ByteOp]:
        """A step's operations; the last one makes its value."""
        if isinstance(step, PoolStep) and step.largest:
            return [self._largest(step, sources[0], target, grid)]
        if isinstance(step, ConcatStep):
            return self._concat(step, sources, target, grid)
        taps = step_taps(step) if isinstance(step, QuantizedConvolution | PoolStep) else UNIT
        ops: list[native.ByteOp] = []
        source = sources[0]
        if taps.step > 1:
            ops += self._split(taps, source, grid)
            source = self._splits[self._split_key(taps, source)]
        op = native.ByteOp(kind=native.QUADS, input=pointer(source), output=pointer(target), low=step.low, high=step.high)
        if len(sources) > 1:
            op.other = pointer(sources[1])
            op.other_scale = self.affine[step.inputs[1]].scale / self.affine[step.output].scale
        prepared = self.prepare(step, op, grid, variant or ByteVariant(1, self.kernels.max_chunks(1)), sources[0].channels)
        self._memory.append(prepared)
        return [*ops, prepared.op]

    def prepare(self, step: Step, old: native.ByteOp, grid: ByteGrid, variant: ByteVariant, channels: int) -> PreparedBytes:
        """A product with the planes of `old`; its memory is its own, so that it can be dropped."""
        packed = self.product(step, grid, channels).pack(variant.block)
        op = native.ByteOp.from_buffer_copy(old)
        op.weights, op.tile_chunks = packed.native, variant.tile_chunks
        if old.other:
            op.other = old.other
        op.input, op.output = old.input, old.output
        return PreparedBytes(op, packed)

    def product(self, step: Step, grid: ByteGrid, channels: int) -> ByteProduct:
        """The integers of a step that multiplies, or adds, or averages; `channels` are those of its input."""
        if isinstance(step, QuantizedConvolution):
            return self._convolution(step, grid)
        taps = step_taps(step) if isinstance(step, PoolStep) else UNIT
        count = len(taps.places)
        weight = torch.ones(channels, count, dtype=torch.int8 if self.kernels.number_bytes == 1 else torch.bfloat16)
        places = torch.tensor([self._place(taps, tap, channels, grid) for tap in range(count)])
        offsets = torch.arange(channels)[:, None] * grid.plane_bytes + places
        return self._scaled(step, weight, offsets, torch.full((channels,), 1.0 / count), None, (1,))

    def _convolution(self, step: QuantizedConvolution, grid: ByteGrid) -> ByteProduct:
        taps = step_taps(step)
        per_group = step.weight.shape[1]
        places = torch.tensor([self._place(taps, tap, step.in_channels, grid) for tap in range(len(taps.places))])
        columns = (torch.arange(per_group)[:, None] * grid.plane_bytes + places).flatten()
        rows = step.out_channels // step.groups
        group = torch.arange(step.groups).repeat_interleave(rows)[:, None] * per_group * grid.plane_bytes
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

    def _place(self, taps: Taps, tap: int, channels: int, grid: ByteGrid) -> int:
        phase, row, col = taps.places[tap]
        return taps.phases.index(phase) * channels * grid.plane_bytes + grid.offset(row, col)

    def _concat(
        self, step: ConcatStep, sources: list[native.BytePlanes], target: native.BytePlanes, grid: ByteGrid
    ) -> list[native.ByteOp]:
        ops, first = [], 0
        for value, source in zip(step.inputs, sources, strict=True):
            part = ConcatStep(step.name, (value,), step.output)
            op = native.ByteOp(kind=native.QUADS, input=pointer(source), output=pointer(target), first_channel=first)
            op.low, op.high = step.low, step.high
            prepared = self.prepare(part, op, grid, ByteVariant(1, self.kernels.max_chunks(1)), source.channels)
            self._memory.append(prepared)
            ops.append(prepared.op)
            first += source.channels
        return ops

    def _largest(self, step: PoolStep, source: native.BytePlanes, target: native.BytePlanes, grid: ByteGrid) -> native.ByteOp:
        taps = step_taps(step)
        plane = {phase: number for number, phase in enumerate(taps.phases)}
        offsets = [plane[phase] * grid.plane_bytes + grid.offset(row, col) for phase, row, col in taps.places]
        op = native.ByteOp(kind=native.LARGEST, input=pointer(source), output=pointer(target), step=taps.step)
        op.tap_offsets, op.taps = self._keep(torch.tensor(offsets, dtype=torch.int32)), len(offsets)
        op.phases, op.phase_planes, op.lead_bytes = self._phases(taps), len(taps.phases), grid.around_bytes
        pixels = op.phase_planes * grid.plane_bytes + 2 * grid.around_bytes
        self.scratch = max(self.scratch, pixels * self.kernels.number_bytes)
        return op

    def _phases(self, taps: Taps) -> int:
        numbers = [taps.phases.index(phase) if phase in taps.phases else -1 for phase in range(taps.step**2)]
        return self._keep(torch.tensor(numbers, dtype=torch.int32))

    def _split_key(self, taps: Taps, source: native.BytePlanes) -> tuple[int, int, tuple[int, ...]]:
        return id(source), taps.step, taps.phases

    def _split(self, taps: Taps, source: native.BytePlanes, grid: ByteGrid) -> list[native.ByteOp]:
        key = self._split_key(taps, source)
        if key in self._splits:
            return []
        target = self._splits[key] = self._take_split(source, source.channels * len(taps.phases), grid, taps.step)
        op = native.ByteOp(kind=native.SPLIT, input=pointer(source), output=pointer(target), step=taps.step)
        op.phases, op.phase_planes = self._phases(taps), len(taps.phases)
        return [op]

    def _keep(self, tensor: Tensor) -> int:
        self._memory.append(tensor)
        return tensor.data_ptr()
