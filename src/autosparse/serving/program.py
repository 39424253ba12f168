"""A region in float32 compiled for one input size."""

from __future__ import annotations

from functools import partial

from autosparse.kernels.library import Engine
from autosparse.serving.layout import PlaneGrid, extents, grids_for
from autosparse.serving.operations import Operations, Variant
from autosparse.serving.planar import PlanarProgram, PreparedOp
from autosparse.serving.steps import ConvolutionStep, Region


class Program(PlanarProgram):
    """A region in float32; `variants` says for each convolution how it is computed."""

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
        grids = grids_for(region, sizes, partial(PlaneGrid, images=images, lanes=engine.lanes))
        operations = Operations(engine, self._take_split)
        super().__init__(region, sizes, grids, operations, engine.table, threads, images, workers)
        self.engine = engine
        self._lay_out(variants)

    def prepare(self, index: int, variant: Variant) -> PreparedOp:
        """A step's convolution computed in another way, not yet in use."""
        step = self.region.steps[index]
        assert isinstance(step, ConvolutionStep)
        old = self._native_ops[self.op_of_step[index]]
        prepared: PreparedOp = self.operations.prepare(step, old, self.grid_of(step), variant)
        if self.operations.scratch > self.scratch_floats:
            self._allocate_scratch()
        return prepared
