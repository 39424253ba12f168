"""The native operations of a region's steps: offsets, packed weights, and how much scratch memory they need."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import pointer
from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import inference_table as native
from autosparse.kernels.library import Engine
from autosparse.serving.layout import PlaneGrid, Taps, step_taps
from autosparse.serving.steps import ConcatStep, ConvolutionStep, PoolStep, Step, SumStep

TakeSplit = Callable[[native.Planes, int, PlaneGrid, int], native.Planes]


@dataclass(frozen=True)
class Variant:
    """How a convolution is computed: on its non-zeros or densely, on tiles of `tile_vectors`, from aligned copies or not."""

    sparse: bool
    tile_vectors: int
    aligned: bool = False

    def __str__(self) -> str:
        return f"{'sparse' if self.sparse else 'dense'} x{self.tile_vectors}{' aligned' if self.aligned else ''}"


@dataclass(eq=False)
class PreparedOp:
    """A sparse or dense operation and the memory it points to."""

    op: native.Op
    memory: list[Tensor]

    def retiled(self, tile_vectors: int) -> PreparedOp:
        """The same on tiles of another size, where the weights do not depend on it."""
        op = native.Op.from_buffer_copy(self.op)
        op.tile_vectors = tile_vectors
        return PreparedOp(op, self.memory)


class Operations:
    """Makes operations and owns the memory they point to."""

    def __init__(self, engine: Engine, take_split: TakeSplit) -> None:
        self.engine, self._take_split = engine, take_split
        self.scratch = 0
        self._memory: list[Tensor] = []
        self._splits: dict[tuple[int, int, tuple[int, ...]], native.Planes] = {}

    def load(self, outside: int, target: native.Planes) -> native.Op:
        return native.Op(kind=native.LOAD, output=pointer(target), outside=outside)

    def store(self, outside: int, source: native.Planes) -> native.Op:
        return native.Op(kind=native.STORE, input=pointer(source), outside=outside)

    def mean(self, outside: int, source: native.Planes) -> native.Op:
        return native.Op(kind=native.MEAN, input=pointer(source), outside=outside)

    def of(
        self, step: Step, sources: list[native.Planes], target: native.Planes, grid: PlaneGrid, variant: Variant | None
    ) -> list[native.Op]:
        """A step's operations; the last one makes its value."""
        if isinstance(step, ConcatStep):
            return self._concat(sources, target)
        op = native.Op(input=pointer(sources[0]), output=pointer(target), finish=native.Finish(None, step.low, step.high))
        if isinstance(step, SumStep):
            op.kind = native.ADD
            if len(sources) > 1:
                op.other = pointer(sources[1])
            return [op]
        if isinstance(step, PoolStep) or (isinstance(step, ConvolutionStep) and step.depthwise):
            return [self._windows(step, op, grid)]
        assert isinstance(step, ConvolutionStep)
        assert variant is not None
        ops = []
        taps = step_taps(step)
        if taps.step > 1:
            ops.extend(self._split(taps, sources[0], grid))
            op.input = pointer(self._splits[self._split_key(taps, sources[0])])
        if len(sources) > 1:
            op.other = pointer(sources[1])
        prepared = self.prepare(step, op, grid, variant)
        self._memory.extend(prepared.memory)
        return [*ops, prepared.op]

    def _concat(self, sources: list[native.Planes], target: native.Planes) -> list[native.Op]:
        ops, first = [], 0
        for source in sources:
            ops.append(native.Op(kind=native.COPY, input=pointer(source), output=pointer(target), first_channel=first))
            first += source.channels
        return ops

    # ---- windows of one channel ------------------------------------------------------------------------------------------

    def _windows(self, step: ConvolutionStep | PoolStep, op: native.Op, grid: PlaneGrid) -> native.Op:
        taps = step_taps(step)
        if isinstance(step, ConvolutionStep):
            op.kind = native.DEPTHWISE
            self._depthwise(op, step, grid)
        else:
            op.kind = native.MAX_POOL if step.largest else native.MEAN_POOL
            op.tap_finish = native.Finish(None, step.low, step.high)
            op.scale = 1.0 / (step.kernel[0] * step.kernel[1])
            self._tap_offsets(op, taps, grid)
        op.step = taps.step
        op.phases = self._phases(taps)
        op.phase_planes = len(taps.phases)
        self.scratch = max(self.scratch, len(taps.phases) * grid.plane_floats)
        return op

    def _depthwise(self, op: native.Op, step: ConvolutionStep, grid: PlaneGrid) -> None:
        op.tap_weights = self._keep(step.weight.flatten(1).float())
        op.tap_finish = native.Finish(self._bias(step), step.low, step.high)
        self._tap_offsets(op, step_taps(step), grid)

    def _tap_offsets(self, op: native.Op, taps: Taps, grid: PlaneGrid) -> None:
        plane = {phase: number for number, phase in enumerate(taps.phases)}
        offsets = [plane[phase] * grid.plane_floats + grid.offset(row, col) for phase, row, col in taps.places]
        op.tap_offsets = self._keep(torch.tensor(offsets, dtype=torch.int32))
        op.taps = len(offsets)

    def _phases(self, taps: Taps) -> int:
        numbers = [taps.phases.index(phase) if phase in taps.phases else -1 for phase in range(taps.step**2)]
        return self._keep(torch.tensor(numbers, dtype=torch.int32))

    def _split_key(self, taps: Taps, source: native.Planes) -> tuple[int, int, tuple[int, ...]]:
        return id(source), taps.step, taps.phases

    def _split(self, taps: Taps, source: native.Planes, grid: PlaneGrid) -> list[native.Op]:
        key = self._split_key(taps, source)
        if key in self._splits:
            return []
        target = self._splits[key] = self._take_split(source, source.channels * len(taps.phases), grid, taps.step)
        op = native.Op(kind=native.SPLIT, input=pointer(source), output=pointer(target), step=taps.step)
        op.phases = self._phases(taps)
        op.phase_planes = len(taps.phases)
        return [op]

    # ---- products of channels --------------------------------------------------------------------------------------------

    def prepare(self, step: ConvolutionStep, old: native.Op, grid: PlaneGrid, variant: Variant) -> PreparedOp:
        """A sparse or dense operation with the planes of `old`; its memory is its own, so that it can be dropped."""
        shared, self._memory = self._memory, []
        op = self._product(step, old, grid, variant)
        memory, self._memory = self._memory, shared
        return PreparedOp(op, memory)

    def _product(self, step: ConvolutionStep, old: native.Op, grid: PlaneGrid, variant: Variant) -> native.Op:
        op = native.Op(input=old.input, output=old.output, rows=step.out_channels, tile_vectors=variant.tile_vectors)
        if old.other:
            op.other = old.other
        op.kind = native.SPARSE if variant.sparse else native.DENSE
        op.finish = native.Finish(self._bias(step), step.low, step.high)
        taps = step_taps(step)
        if step.before is not None:
            op.source = native.DEPTHWISE_TILE
            self._depthwise(op, step.before, grid)
            width = variant.tile_vectors * self.engine.lanes
            channels, places = width, torch.zeros(1, dtype=torch.int64)
            self.scratch = max(self.scratch, step.in_channels * width)
        elif variant.aligned:
            op.source = native.ALIGNED_TILE
            channels, places = self._shifts(op, taps, grid, variant)
            self.scratch = max(self.scratch, step.in_channels * channels)
        else:
            op.source = native.DIRECT
            channels = grid.plane_floats
            places = torch.tensor([self._place(taps, tap, step.in_channels, grid) for tap in range(len(taps.places))])
        columns = torch.arange(step.weight.shape[1])[:, None] * channels + places
        group_floats = step.weight.shape[1] * channels
        self._weights(op, step, columns.flatten(), group_floats, variant.sparse)
        return op

    def _place(self, taps: Taps, tap: int, channels: int, grid: PlaneGrid) -> int:
        phase, row, col = taps.places[tap]
        return taps.phases.index(phase) * channels * grid.plane_floats + grid.offset(row, col)

    def _shifts(self, op: native.Op, taps: Taps, grid: PlaneGrid, variant: Variant) -> tuple[int, Tensor]:
        """One copy of the tile for every remainder of the taps' offsets; returns floats per channel and the taps' places."""
        lanes = self.engine.lanes
        offsets = [grid.offset(row, col) for _, row, col in taps.places]
        copies = {
            rest: [at // lanes for at in offsets if at % lanes == rest] for rest in sorted({at % lanes for at in offsets})
        }
        begins, rows, total = {}, [], 0
        for rest, quotients in copies.items():
            first, more = min(quotients), max(quotients) - min(quotients)
            begins[rest] = total - first * lanes
            rows.append((first * lanes + rest, more))
            total += (variant.tile_vectors + more) * lanes
        op.shifts = self._keep(torch.tensor(rows, dtype=torch.int64))
        op.shift_count, op.shift_floats = len(rows), total
        return total, torch.tensor([begins[at % lanes] + at // lanes * lanes for at in offsets])

    def _weights(self, op: native.Op, step: ConvolutionStep, columns: Tensor, group_floats: int, sparse: bool) -> None:
        weight = step.weight.detach().flatten(1).float()
        if sparse:
            starts, terms, total = [torch.zeros(1, dtype=torch.int32)], [], 0
            for group, part in enumerate(weight.chunk(step.groups)):
                row_start, of_group = native.pack_terms(part, columns + group * group_floats)
                starts.append(row_start[1:] + total)
                terms.append(of_group)
                total += int(row_start[-1])
            op.row_start = self._keep(torch.cat(starts))
            op.terms = self._keep(torch.cat(terms))
            return
        assert step.groups == 1
        rows = self.engine.dense_rows
        blocks = -(-weight.shape[0] // rows)
        padded = weight.new_zeros(blocks * rows, weight.shape[1])
        padded[: weight.shape[0]] = weight
        op.blocks = self._keep(padded.view(blocks, rows, -1).transpose(1, 2))
        op.offsets = self._keep(columns.to(torch.int32))
        op.columns = weight.shape[1]

    def _bias(self, step: ConvolutionStep) -> int | None:
        return None if step.bias is None else self._keep(step.bias.detach().float())

    def _keep(self, tensor: Tensor) -> int:
        """The address of a tensor that lives as long as the operations do."""
        tensor = tensor.contiguous().clone()
        self._memory.append(tensor)
        return tensor.data_ptr()
