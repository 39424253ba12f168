"""A quantized region compiled for one input size: bytes in one arena, one native call for the whole stretch."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from ctypes import POINTER, byref, pointer
from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import byte_table as native
from autosparse.kernels.inference_table import Call
from autosparse.serving.layout import Extent, extents
from autosparse.serving.program import FLOAT_BYTES, HUGE_PAGE, arena, pointers
from autosparse.serving.quantized.layout import ByteGrid, byte_grids
from autosparse.serving.quantized.operations import ByteOperations, ByteVariant, PreparedBytes
from autosparse.serving.quantized.steps import Affine, QuantizedRegion
from autosparse.serving.steps import MeanStep, Pair, Step


@dataclass(eq=False)
class PlacedBytes:
    """A value in the arena."""

    extent: Extent
    grid: ByteGrid
    zero_point: int
    begin: int  # plane
    planes: native.BytePlanes
    valid: Tensor


class ByteProgram:
    """Runs a quantized region for any number of images of one size; `variants` says for each product how it is computed."""

    def __init__(
        self,
        quantized: QuantizedRegion,
        shapes: list[tuple[int, int, int]],
        kernels: native.ByteKernels,
        threads: int,
        images: int,
        workers: int,
        variants: dict[int, ByteVariant],
    ) -> None:
        self.quantized, self.region, self.kernels = quantized, quantized.region, kernels
        self.threads, self.images, self.workers = threads, images, workers
        self.sizes = extents(self.region, shapes)
        self.grids = byte_grids(self.region, self.sizes, images)
        self._lock = threading.Lock()
        self._valid: dict[tuple[Pair, Pair], Tensor] = {}
        self._placed: dict[int, PlacedBytes] = {}
        self._to_place: list[PlacedBytes] = []
        self.operations = ByteOperations(kernels, quantized.affine, self._take_split)
        self._in_use: dict[int, PreparedBytes] = {}
        self._lay_out(variants)
        self._allocate()

    def use_one_thread(self) -> None:
        """In a forked child."""
        self.threads = 1
        self._lock = threading.Lock()

    def _lay_out(self, variants: dict[int, ByteVariant]) -> None:
        """Operations in order; a value's planes are free again after its last reader."""
        region = self.region
        readers = Counter(value for step in region.steps for value in step.inputs) + Counter(region.outputs)
        self.ops: list[native.ByteOp] = []
        self.op_of_step: dict[int, int] = {}
        for number, value in enumerate(region.inputs):
            self.ops.append(self.operations.load(number, self._place(value, fresh=True)))
        for index, step in enumerate(region.steps):
            sources = [self._placed[value].planes for value in step.inputs]
            if isinstance(step, MeanStep):
                self.ops.append(self.operations.mean(region.outputs.index(step.output), sources[0]))
            else:
                target = self._place(step.output)
                self.ops += self.operations.of(step, sources, target, self.grid_of(step), variants.get(index))
                self.op_of_step[index] = len(self.ops) - 1
                if step.output in region.outputs:
                    self.ops.append(self.operations.store(region.outputs.index(step.output), target))
                    readers[step.output] -= 1
            for value in step.inputs:
                readers[value] -= 1
                if readers[value] == 0 and value not in region.inputs:
                    placed = self._placed[value]
                    placed.grid.pool(placed.zero_point).give_back(placed.begin, placed.extent.channels)

    def grid_of(self, step: Step) -> ByteGrid:
        return self.grids[self.sizes[step.output].grid]

    def _place(self, value: int, fresh: bool = False) -> native.BytePlanes:
        self._placed[value] = self._reserve(self.sizes[value], self.quantized.affine[value], fresh)
        return self._placed[value].planes

    def _take_split(self, source: native.BytePlanes, channels: int, grid: ByteGrid, step: int) -> native.BytePlanes:
        """Planes for the phases of a value; nothing else is ever put there, so what has no pixel stays the zero point."""
        size = -(-source.rows // step), -(-source.cols // step)
        affine = Affine(source.scale, source.zero_point)
        return self._reserve(Extent(channels, size, grid.size), affine, fresh=True).planes

    def _reserve(self, extent: Extent, affine: Affine, fresh: bool) -> PlacedBytes:
        grid = self.grids[extent.grid]
        valid = self._valid.setdefault((extent.grid, extent.size), grid.valid(extent.size))
        planes = native.BytePlanes(
            None, extent.channels, grid.plane_bytes, grid.images, *extent.size, grid.image_bytes, grid.row_bytes,
            grid.chunks, valid.data_ptr(), affine.zero_point, affine.scale,
        )  # fmt: skip
        begin = grid.pool(affine.zero_point).take(extent.channels, fresh=fresh)
        placed = PlacedBytes(extent, grid, affine.zero_point, begin, planes, valid)
        self._to_place.append(placed)
        return placed

    def _allocate(self) -> None:
        """Pools one after the other, each filled with its zero point, as often as there are workers."""
        first: dict[tuple[Pair, int], int] = {}
        size = 0
        for key, grid in self.grids.items():
            for zero_point, pool in grid.pools.items():
                first[key, zero_point] = size
                size += pool.count * grid.plane_bytes + 2 * grid.around_bytes
        self.arena_floats = -(-size * self.kernels.number_bytes // FLOAT_BYTES)
        self.arena = arena(self.arena_floats * self.workers)
        raw = self.arena.view(dtype=torch.uint8)
        for key, grid in self.grids.items():
            for zero_point, pool in grid.pools.items():
                for worker in range(self.workers if zero_point else 0):
                    begin = worker * self.arena_floats * FLOAT_BYTES + first[key, zero_point]
                    raw[begin : begin + pool.count * grid.plane_bytes + 2 * grid.around_bytes] = zero_point
        for placed in self._to_place:
            grid = placed.grid
            at = first[grid.size, placed.zero_point] + grid.around_bytes + placed.begin * grid.plane_bytes
            placed.planes.first = self.arena.data_ptr() + at * self.kernels.number_bytes
        self.scratch_floats = -(-max(self.operations.scratch, 1) // HUGE_PAGE) * HUGE_PAGE // FLOAT_BYTES
        self.scratch = arena(self.scratch_floats * self.threads)
        self._native_ops = (native.ByteOp * len(self.ops))(*self.ops)

    def prepare(self, index: int, variant: ByteVariant) -> PreparedBytes:
        """A step's product computed in another way, not yet in use."""
        step = self.region.steps[index]
        channels = self.sizes[step.inputs[0]].channels
        return self.operations.prepare(step, self._native_ops[self.op_of_step[index]], self.grid_of(step), variant, channels)

    def use(self, index: int, prepared: PreparedBytes) -> None:
        """Compute a step's product in this way from now on; values stay where they are."""
        self._native_ops[self.op_of_step[index]] = prepared.op
        self._in_use[index] = prepared

    def __call__(self, inputs: list[Tensor], seconds: Tensor | None = None) -> list[Tensor]:
        """The region's outputs for (images, channels, rows, cols) inputs."""
        inputs = [x.contiguous() for x in inputs]
        images = inputs[0].shape[0]
        outputs = [self._empty(value, inputs[0]) for value in self.region.outputs]
        if images:
            with self._lock:
                self.run(0, len(self.ops), images, inputs, outputs, seconds)
        return outputs

    def run(
        self, first: int, count: int, images: int, inputs: list[Tensor], outputs: list[Tensor], seconds: Tensor | None = None
    ) -> None:
        """Some of the operations."""
        groups = -(-images // self.images)
        apart = self.workers >= self.threads > 1 and groups >= self.threads
        call = Call(
            images, self.images, self.threads, int(not apart), self.arena_floats, self.scratch.data_ptr(),
            self.scratch_floats, pointers(inputs), pointers(outputs), None if seconds is None else seconds.data_ptr(),
        )  # fmt: skip
        at = ctypes.cast(byref(self._native_ops, first * ctypes.sizeof(native.ByteOp)), POINTER(native.ByteOp))
        self.kernels.table.run(at, count, pointer(call))

    def _empty(self, value: int, like: Tensor) -> Tensor:
        extent = self.sizes[value]
        is_mean = any(isinstance(step, MeanStep) and step.output == value for step in self.region.steps)
        return like.new_empty(len(like), extent.channels, *((1, 1) if is_mean else extent.size))
