"""What programs share whatever their numbers are: planes in one arena, operations in order, one native call."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from ctypes import POINTER, byref, c_void_p, pointer
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from autosparse.kernels import inference_table as native
from autosparse.serving.layout import Extent, Grid, PlanePool, Taps
from autosparse.serving.steps import MeanStep, Pair, Region, Step

HUGE_PAGE = 2 << 20
FLOAT_BYTES = 4

TakeSplit = Callable[[native.Planes, int, Any, int], native.Planes]


def arena(floats: int) -> Tensor:
    """Zeros on huge pages where the system has them: a tile touches as many pages as there are channels."""
    size = -(-floats * FLOAT_BYTES // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE
    # private: a forked child would otherwise compute in its parent's memory
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    mapped = torch.frombuffer(memory, dtype=torch.float32)
    skip = -mapped.data_ptr() % HUGE_PAGE // FLOAT_BYTES
    return mapped[skip : skip + floats]


@dataclass(eq=False)
class PreparedOp:
    """The operation of a step and the memory it points to."""

    op: Any
    memory: list[Tensor]

    def retiled(self, tile_vectors: int) -> PreparedOp:
        """The same on tiles of another size, where the weights do not depend on it."""
        op = type(self.op).from_buffer_copy(self.op)
        op.tile_vectors = tile_vectors
        return PreparedOp(op, self.memory)


class PlanarOperations:
    """Makes operations and owns the memory they point to. Kinds of numbers differ in their products and windows."""

    operation: ClassVar[Any]  # as native code reads it

    def __init__(self, take_split: TakeSplit, number_bytes: int) -> None:
        self._take_split, self.number_bytes = take_split, number_bytes
        self.scratch = 0  # numbers
        self._memory: list[Any] = []
        self._splits: dict[tuple[int, int, tuple[int, ...]], native.Planes] = {}

    def load(self, outside: int, target: native.Planes) -> Any:
        return self.operation(kind=native.LOAD, output=pointer(target), outside=outside)

    def store(self, outside: int, source: native.Planes) -> Any:
        return self.operation(kind=native.STORE, input=pointer(source), outside=outside)

    def mean(self, outside: int, source: native.Planes) -> Any:
        return self.operation(kind=native.MEAN, input=pointer(source), outside=outside)

    def _split(self, taps: Taps, source: native.Planes, grid: Any) -> tuple[list[Any], native.Planes]:
        """The planes that taps read, and what takes the phases of a value apart, unless that was done before."""
        if taps.step == 1:
            return [], source
        key = id(source), taps.step, taps.phases
        if key in self._splits:
            return [], self._splits[key]
        target = self._splits[key] = self._take_split(source, source.channels * len(taps.phases), grid, taps.step)
        op = self.operation(kind=native.SPLIT, input=pointer(source), output=pointer(target))
        self._set_phases(op, taps)
        return [op], target

    def _set_phases(self, op: Any, taps: Taps) -> None:
        numbers = [taps.phases.index(phase) if phase in taps.phases else -1 for phase in range(taps.step**2)]
        op.step, op.phase_planes = taps.step, len(taps.phases)
        op.phases = self._keep(torch.tensor(numbers, dtype=torch.int32))

    def _set_taps(self, op: Any, taps: Taps, grid: Grid) -> None:
        op.tap_offsets, op.taps = self._keep(grid.places(taps).to(torch.int32)), len(taps.places)

    def _keep(self, tensor: Tensor) -> int:
        """The address of a tensor that lives as long as the operations do."""
        tensor = tensor.contiguous().clone()
        self._memory.append(tensor)
        return tensor.data_ptr()


@dataclass(eq=False)
class Placed:
    """A value in the arena."""

    extent: Extent
    grid: Grid
    zero_point: int
    begin: int  # plane
    planes: native.Planes

    @property
    def pool(self) -> PlanePool:
        return self.grid.pools[self.zero_point]


class PlanarProgram:
    """Runs a region for any number of images of one size. Kinds of numbers differ in their grids, operations and kernels."""

    def __init__(
        self,
        region: Region,
        sizes: Mapping[int, Extent],
        grids: Mapping[Pair, Any],
        operations: Any,
        table: Any,
        threads: int,
        images: int,
        workers: int,
    ) -> None:
        self.region, self.sizes, self.grids, self.operations, self._table = region, sizes, grids, operations, table
        self.threads, self.images, self.workers = threads, images, workers
        self.ops: list[Any] = []
        self.op_of_step: dict[int, int] = {}
        self._lock = threading.Lock()
        self._valid: dict[tuple[Pair, Pair], Tensor] = {}
        self._placed: dict[int, Placed] = {}
        self._to_place: list[Placed] = []
        self._in_use: dict[int, Any] = {}

    def use_one_thread(self) -> None:
        """In a forked child."""
        self.threads = 1
        self._lock = threading.Lock()

    def _zero_of(self, value: int) -> tuple[int, float]:
        """The zero point and the scale of a value."""
        return 0, 1.0

    def _lay_out(self, variants: Mapping[int, Any]) -> None:
        """Operations in order; a value's planes are free again after its last reader."""
        region = self.region
        readers = Counter(value for step in region.steps for value in step.inputs) + Counter(region.outputs)
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
                    placed.pool.give_back(placed.begin, placed.extent.channels)
        self._allocate()

    def grid_of(self, step: Step) -> Any:
        return self.grids[self.sizes[step.output].grid]

    def _place(self, value: int, fresh: bool = False) -> native.Planes:
        self._placed[value] = self._reserve(self.sizes[value], *self._zero_of(value), fresh)
        return self._placed[value].planes

    def _take_split(self, source: native.Planes, channels: int, grid: Grid, step: int) -> native.Planes:
        """Planes for the phases of a value; nothing else is ever put there, so what has no pixel stays the zero point."""
        size = -(-source.rows // step), -(-source.cols // step)
        return self._reserve(Extent(channels, size, grid.size), source.zero_point, source.scale, fresh=True).planes

    def _reserve(self, extent: Extent, zero_point: int, scale: float, fresh: bool) -> Placed:
        grid: Grid = self.grids[extent.grid]
        key = (extent.grid, extent.size)
        if key not in self._valid:
            self._valid[key] = grid.valid(extent.size)
        planes = native.Planes(
            None, extent.channels, grid.plane_pixels, grid.lead_pixels, grid.images, *extent.size, grid.image_pixels,
            grid.row_pixels, grid.vectors, self._valid[key].data_ptr(), zero_point, scale,
        )  # fmt: skip
        begin = grid.pools[zero_point].take(extent.channels, fresh=fresh)
        placed = Placed(extent, grid, zero_point, begin, planes)
        self._to_place.append(placed)
        return placed

    def _allocate(self) -> None:
        """Pools one after the other, each filled with its zero point, as often as there are workers."""
        number_bytes, size = self.operations.number_bytes, 0
        first: dict[tuple[Pair, int], int] = {}
        pools = [(grid, zero_point) for grid in self.grids.values() for zero_point in grid.pools]
        for grid, zero_point in pools:
            first[grid.size, zero_point] = size
            size += grid.pool_pixels(zero_point)
        self.arena_floats = -(-size * number_bytes // FLOAT_BYTES)
        self.arena = arena(self.arena_floats * self.workers)
        by_worker = self.arena.view(dtype=torch.uint8).view(self.workers, -1)
        for grid, zero_point in pools:
            if zero_point:  # of bytes
                by_worker[:, first[grid.size, zero_point] :][:, : grid.pool_pixels(zero_point)] = zero_point
        for placed in self._to_place:
            at = first[placed.grid.size, placed.zero_point] + placed.begin * placed.grid.plane_pixels + placed.grid.lead_pixels
            placed.planes.first = self.arena.data_ptr() + at * number_bytes
        self._allocate_scratch()
        self._native_ops = (self.operations.operation * len(self.ops))(*self.ops)

    def _allocate_scratch(self) -> None:
        pages = -(-max(self.operations.scratch * self.operations.number_bytes, 1) // HUGE_PAGE)
        self.scratch_floats = pages * HUGE_PAGE // FLOAT_BYTES
        self.scratch = arena(self.scratch_floats * self.threads)

    def use(self, index: int, prepared: PreparedOp) -> None:
        """Compute a step in this way from now on; values stay where they are."""
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
        call = native.Call(
            images, self.images, self.threads, int(not apart), self.arena_floats, self.scratch.data_ptr(),
            self.scratch_floats, pointers(inputs), pointers(outputs), None if seconds is None else seconds.data_ptr(),
        )  # fmt: skip
        operation = self.operations.operation
        at = ctypes.cast(byref(self._native_ops, first * ctypes.sizeof(operation)), POINTER(operation))
        self._table.run(at, count, pointer(call))

    def _empty(self, value: int, like: Tensor) -> Tensor:
        extent = self.sizes[value]
        is_mean = any(isinstance(step, MeanStep) and step.output == value for step in self.region.steps)
        return like.new_empty(len(like), extent.channels, *((1, 1) if is_mean else extent.size))


def pointers(tensors: list[Tensor]) -> ctypes.Array[c_void_p]:
    """Where tensors begin, for native code."""
    return (c_void_p * max(len(tensors), 1))(*(tensor.data_ptr() for tensor in tensors))
