"""A region compiled for one input size: planes in one arena, native operations, one call for the whole stretch."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import Counter
from ctypes import POINTER, byref, c_void_p, pointer
from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import inference_table as native
from autosparse.kernels.library import Engine
from autosparse.serving.layout import Extent, PlaneGrid, extents, grids_for
from autosparse.serving.operations import Operations, PreparedOp, Variant
from autosparse.serving.steps import ConvolutionStep, MeanStep, Region, Step

HUGE_PAGE = 2 << 20
FLOAT_BYTES = 4
HUGE_PAGE_FLOATS = HUGE_PAGE // FLOAT_BYTES


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
class Placed:
    """A value in the arena."""

    extent: Extent
    grid: PlaneGrid
    begin: int  # plane
    planes: native.Planes
    valid: Tensor


class Program:
    """Runs a region for any number of images of one size; `variants` says for each convolution how it is computed."""

    def __init__(
        self,
        region: Region,
        shapes: list[tuple[int, int, int]],
        engine: Engine,
        threads: int,
        images: int,
        workers: int,
        variants: dict[int, Variant],
    ) -> None:
        self.region, self.engine, self.threads, self.images, self.workers = region, engine, threads, images, workers
        self.sizes = extents(region, shapes)
        self.grids = grids_for(region, self.sizes, images, engine.lanes)
        self._lock = threading.Lock()
        self._valid: dict[tuple[tuple[int, int], tuple[int, int]], Tensor] = {}
        self._placed: dict[int, Placed] = {}
        self._to_place: list[Placed] = []
        self.operations = Operations(engine, self._take_split)
        self._in_use: dict[int, PreparedOp] = {}
        self._lay_out(variants)
        self._allocate()

    def use_one_thread(self) -> None:
        """In a forked child."""
        self.threads = 1
        self._lock = threading.Lock()

    def _lay_out(self, variants: dict[int, Variant]) -> None:
        """Operations in order; a value's planes are free again after its last reader."""
        region = self.region
        readers = Counter(value for step in region.steps for value in step.inputs) + Counter(region.outputs)
        self.ops: list[native.Op] = []
        self.op_of_step: dict[int, int] = {}
        for number, value in enumerate(region.inputs):
            self.ops.append(self.operations.load(number, self._place(value, fresh=True)))
        for index, step in enumerate(region.steps):
            sources = [self._placed[value] for value in step.inputs]
            if isinstance(step, MeanStep):
                self.ops.append(self.operations.mean(region.outputs.index(step.output), sources[0].planes))
            else:
                target = self._place(step.output)
                planes = [source.planes for source in sources]
                self.ops += self.operations.of(step, planes, target, self.grid_of(step), variants.get(index))
                self.op_of_step[index] = len(self.ops) - 1
                if step.output in region.outputs:
                    self.ops.append(self.operations.store(region.outputs.index(step.output), target))
                    readers[step.output] -= 1
            for value in step.inputs:
                readers[value] -= 1
                if readers[value] == 0 and value not in region.inputs:
                    placed = self._placed[value]
                    placed.grid.planes.give_back(placed.begin, placed.extent.channels)

    def grid_of(self, step: Step) -> PlaneGrid:
        return self.grids[self.sizes[step.output].grid]

    def _place(self, value: int, fresh: bool = False) -> native.Planes:
        self._placed[value] = self._reserve(self.sizes[value], fresh)
        return self._placed[value].planes

    def _take_split(self, source: native.Planes, channels: int, grid: PlaneGrid, step: int) -> native.Planes:
        """Planes for the phases of a value; nothing else is ever put there, so what has no pixel stays zero."""
        size = -(-source.rows // step), -(-source.cols // step)
        return self._reserve(Extent(channels, size, grid.size), fresh=True).planes

    def _reserve(self, extent: Extent, fresh: bool) -> Placed:
        grid = self.grids[extent.grid]
        key = (extent.grid, extent.size)
        if key not in self._valid:
            self._valid[key] = grid.valid(extent.size)
        valid = self._valid[key]
        planes = native.Planes(
            None, extent.channels, grid.plane_floats, grid.lead_floats, grid.images, *extent.size,
            grid.image_floats, grid.row_floats, grid.vectors, valid.data_ptr(),
        )  # fmt: skip
        placed = Placed(extent, grid, grid.planes.take(extent.channels, fresh=fresh), planes, valid)
        self._to_place.append(placed)
        return placed

    def _allocate(self) -> None:
        floats = 0
        for grid in self.grids.values():
            grid.first = floats
            floats += grid.planes.count * grid.plane_floats
        self.arena_floats = floats
        self.arena = arena(floats * self.workers)
        for placed in self._to_place:
            grid = placed.grid
            at = grid.first + placed.begin * grid.plane_floats + grid.lead_floats
            placed.planes.first = self.arena.data_ptr() + at * FLOAT_BYTES
        self._allocate_scratch()
        self._native_ops = (native.Op * len(self.ops))(*self.ops)

    def prepare(self, index: int, variant: Variant) -> PreparedOp:
        """A step's convolution computed in another way, not yet in use."""
        step = self.region.steps[index]
        assert isinstance(step, ConvolutionStep)
        prepared = self.operations.prepare(step, self._native_ops[self.op_of_step[index]], self.grid_of(step), variant)
        if self.operations.scratch > self.scratch_floats:
            self._allocate_scratch()
        return prepared

    def use(self, index: int, prepared: PreparedOp) -> None:
        """Compute a step's convolution in this way from now on; values stay where they are."""
        self._native_ops[self.op_of_step[index]] = prepared.op
        self._in_use[index] = prepared

    def _allocate_scratch(self) -> None:
        self.scratch_floats = -(-max(self.operations.scratch, 1) // HUGE_PAGE_FLOATS) * HUGE_PAGE_FLOATS
        self.scratch = arena(self.scratch_floats * self.threads)

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
        at = ctypes.cast(byref(self._native_ops, first * ctypes.sizeof(native.Op)), POINTER(native.Op))
        self.engine.table.run(at, count, pointer(call))

    def _empty(self, value: int, like: Tensor) -> Tensor:
        extent = self.sizes[value]
        is_mean = any(isinstance(step, MeanStep) and step.output == value for step in self.region.steps)
        return like.new_empty(len(like), extent.channels, *((1, 1) if is_mean else extent.size))


def pointers(tensors: list[Tensor]) -> ctypes.Array[c_void_p]:
    """Where tensors begin, for native code."""
    return (c_void_p * max(len(tensors), 1))(*(tensor.data_ptr() for tensor in tensors))
