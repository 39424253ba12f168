"""The native operations of a region's steps: offsets, packed weights, and how much scratch memory they need."""

from __future__ import annotations

from ctypes import pointer
from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import inference_table as native
from autosparse.kernels.library import Engine
from autosparse.serving.layout import PlaneGrid, Taps, step_taps
from autosparse.serving.planar import FLOAT_BYTES, PlanarOperations, PreparedOp, TakeSplit
from autosparse.serving.steps import ConcatStep, ConvolutionStep, PoolStep, Step, SumStep


@dataclass(frozen=True)
class Variant:
    """How a convolution is computed: on its non-zeros or densely, on tiles of `tile_vectors`, from aligned copies or not."""

    sparse: bool
    tile_vectors: int
    aligned: bool = False

    def __str__(self) -> str:
        return f"{'sparse' if self.sparse else 'dense'} x{self.tile_vectors}{' aligned' if self.aligned else ''}"


class Operations(PlanarOperations):
    """Operations on floats."""

    operation = native.Op

    def __init__(self, engine: Engine, take_split: TakeSplit) -> None:
        super().__init__(take_split, FLOAT_BYTES)
        self.engine = engine

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
        ops, source = self._split(step_taps(step), sources[0], grid)
        op.input = pointer(source)
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
            self._set_taps(op, taps, grid)
        self._set_phases(op, taps)
        self.scratch = max(self.scratch, len(taps.phases) * grid.plane_pixels)
        return op

    def _depthwise(self, op: native.Op, step: ConvolutionStep, grid: PlaneGrid) -> None:
        op.tap_weights = self._keep(step.weight.flatten(1).float())
        op.tap_finish = native.Finish(self._bias(step), step.low, step.high)
        self._set_taps(op, step_taps(step), grid)

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
            channels = grid.plane_pixels
            places = grid.places(taps, step.in_channels)
        columns = torch.arange(step.weight.shape[1])[:, None] * channels + places
        group_floats = step.weight.shape[1] * channels
        self._weights(op, step, columns.flatten(), group_floats, variant.sparse)
        return op

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
