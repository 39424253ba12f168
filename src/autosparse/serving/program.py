"""A region compiled for one input size: planes in one arena, native operations, one call for the whole stretch."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import inference_table as native
from autosparse.kernels.library import Engine
from autosparse.serving.layout import Extent, PlaneGrid, extents, grids_for
from autosparse.serving.operations import Operations, PreparedOp, Variant
from autosparse.serving.planar import PlanarProgram
from autosparse.serving.steps import ConvolutionStep, Region

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


class Program(PlanarProgram):
    """A region in float32; `variants` says for each convolution how it is computed."""

    operation = native.Op

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
        sizes = extents(region, shapes)
        super().__init__(region, sizes, Operations(engine, self._take_split), engine.table, threads, images, workers)
        self.engine = engine
        self.grids: dict[tuple[int, int], PlaneGrid] = grids_for(region, sizes, images, engine.lanes)
        self._lay_out(variants)
        self._allocate()

    def _reserve_value(self, value: int, fresh: bool) -> Placed:
        return self._reserve(self.sizes[value], fresh)

    def _give_back(self, placed: Placed) -> None:
        placed.grid.planes.give_back(placed.begin, placed.extent.channels)

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
        prepared: PreparedOp = self.operations.prepare(
            step, self._native_ops[self.op_of_step[index]], self.grid_of(step), variant
        )
        if self.operations.scratch > self.scratch_floats:
            self._allocate_scratch()
        return prepared

    def _allocate_scratch(self) -> None:
        self.scratch_floats = -(-max(self.operations.scratch, 1) // HUGE_PAGE_FLOATS) * HUGE_PAGE_FLOATS
        self.scratch = arena(self.scratch_floats * self.threads)
