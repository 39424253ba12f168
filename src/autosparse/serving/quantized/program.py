"""A quantized region compiled for one input size: bytes in one arena, one native call for the whole stretch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import byte_table as native
from autosparse.serving.layout import Extent, extents
from autosparse.serving.planar import PlanarProgram
from autosparse.serving.program import FLOAT_BYTES, HUGE_PAGE, arena
from autosparse.serving.quantized.layout import ByteGrid, byte_grids
from autosparse.serving.quantized.operations import ByteOperations, ByteVariant, PreparedBytes
from autosparse.serving.quantized.steps import Affine, QuantizedRegion
from autosparse.serving.steps import Pair


@dataclass(eq=False)
class PlacedBytes:
    """A value in the arena."""

    extent: Extent
    grid: ByteGrid
    zero_point: int
    begin: int  # plane
    planes: native.BytePlanes
    valid: Tensor


class ByteProgram(PlanarProgram):
    """A quantized region; `variants` says for each product how it is computed."""

    operation = native.ByteOp

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
        region, sizes = quantized.region, extents(quantized.region, shapes)
        operations = ByteOperations(kernels, quantized.affine, self._take_split)
        super().__init__(region, sizes, operations, kernels.table, threads, images, workers)
        self.quantized, self.kernels = quantized, kernels
        self.grids: dict[Pair, ByteGrid] = byte_grids(region, sizes, images)
        self._lay_out(variants)
        self._allocate()

    def _reserve_value(self, value: int, fresh: bool) -> PlacedBytes:
        return self._reserve(self.sizes[value], self.quantized.affine[value], fresh)

    def _give_back(self, placed: PlacedBytes) -> None:
        placed.grid.pool(placed.zero_point).give_back(placed.begin, placed.extent.channels)

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
        op, grid = self._native_ops[self.op_of_step[index]], self.grid_of(step)
        prepared: PreparedBytes = self.operations.prepare(step, op, grid, variant, channels)
        return prepared
