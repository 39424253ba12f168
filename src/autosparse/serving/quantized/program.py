"""A region in int8 or bfloat16 compiled for one input size."""

from __future__ import annotations

from functools import partial

from autosparse.kernels.byte_table import CHUNK_PIXELS, ByteKernels
from autosparse.serving.layout import extents, grids_for
from autosparse.serving.planar import PlanarProgram, PreparedOp
from autosparse.serving.quantized.layout import ByteGrid
from autosparse.serving.quantized.operations import ByteOperations, ByteVariant
from autosparse.serving.quantized.steps import QuantizedRegion


class ByteProgram(PlanarProgram):
    """A quantized region; `variants` says for each product how it is computed."""

    def __init__(
        self,
        quantized: QuantizedRegion,
        shapes: list[tuple[int, int, int]],
        kernels: ByteKernels,
        threads: int,
        images: int,
        workers: int,
        variants: dict[int, ByteVariant],
    ) -> None:
        region, sizes = quantized.region, extents(quantized.region, shapes)
        grids = grids_for(region, sizes, partial(ByteGrid, images=images, lanes=CHUNK_PIXELS))
        operations = ByteOperations(kernels, quantized.affine, self._take_split)
        super().__init__(region, sizes, grids, operations, kernels.table, threads, images, workers)
        self.quantized, self.kernels = quantized, kernels
        self._lay_out(variants)

    def _zero_of(self, value: int) -> tuple[int, float]:
        affine = self.quantized.affine[value]
        return affine.zero_point, affine.scale

    def prepare(self, index: int, variant: ByteVariant) -> PreparedOp:
        """A step's product computed in another way, not yet in use."""
        step = self.region.steps[index]
        channels = self.sizes[step.inputs[0]].channels
        op, grid = self._native_ops[self.op_of_step[index]], self.grid_of(step)
        prepared: PreparedOp = self.operations.prepare(step, op, grid, variant, channels)
        return prepared
