"""Chooses how every convolution of a program is computed, by measuring the candidates in place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TypeVar

from torch import Tensor

from autosparse.common.turns import clock_for, take_turns
from autosparse.kernels.library import Engine
from autosparse.serving.layout import PlaneGrid
from autosparse.serving.operations import Variant
from autosparse.serving.planar import PreparedOp
from autosparse.serving.program import Program
from autosparse.serving.steps import ConvolutionStep, Region

TILE_VECTORS = (4, 6, 8, 11, 14)
FIRST_TILE = 7
DENSE_TILE = 4
# Above this density nothing was ever faster sparse; below the other one nothing was ever faster dense.
MOST_SPARSE_DENSITY, LEAST_DENSE_DENSITY = 0.7, 0.12
ALIGNED_TILES = 3  # the copies of larger tiles leave the nearer caches
ROUNDS = 4

Key = TypeVar("Key", bound=Hashable)


def even_tile(vectors: int, tile: int) -> int:
    """At most `tile`, with the last tile as full as the others."""
    tiles = -(-vectors // min(tile, vectors))
    return -(-vectors // tiles)


def first_guess(region: Region) -> dict[int, Variant]:
    """A working variant for every convolution, before anything is measured."""
    sparse = {index: may_be_sparse(step) for index, step in region.products().items()}
    return {index: Variant(yes, FIRST_TILE if yes else DENSE_TILE) for index, yes in sparse.items()}


def may_be_sparse(step: ConvolutionStep) -> bool:
    return step.groups > 1 or step.density <= MOST_SPARSE_DENSITY


def candidates(step: ConvolutionStep, grid: PlaneGrid, engine: Engine) -> list[Variant]:
    """What is worth measuring."""
    variants = []
    if may_be_sparse(step):
        tiles = sorted({even_tile(grid.vectors, min(tile, engine.max_vectors)) for tile in TILE_VECTORS})
        variants += [Variant(True, tile) for tile in tiles]
        if step.kernel != (1, 1) and step.stride == (1, 1):
            variants += [Variant(True, tile, aligned=True) for tile in tiles[:ALIGNED_TILES]]
    if step.groups == 1 and step.density >= LEAST_DENSE_DENSITY:
        variants.append(Variant(False, DENSE_TILE))
    return variants


def fastest(
    calls: Mapping[Key, Callable[[], object]], threads: int, rounds: int = ROUNDS, before: Callable[[], object] | None = None
) -> dict[Key, float]:
    """Least seconds of each call, untimed before it `before` or the same call once more."""
    seconds = take_turns(
        calls, rounds, clock=clock_for(threads), before=lambda key: calls[key]() if before is None else before()
    )
    return {key: min(every) for key, every in seconds.items()}


def choose(program: Program, inputs: list[Tensor]) -> dict[int, Variant]:
    """Measure every convolution on these inputs and use what is fastest."""
    outputs = program(inputs)
    return {index: _choose_one(program, index, step, inputs, outputs) for index, step in program.region.products().items()}


def _choose_one(program: Program, index: int, step: ConvolutionStep, inputs: list[Tensor], outputs: list[Tensor]) -> Variant:
    variants = candidates(step, program.grid_of(step), program.engine)
    prepared = _prepare(program, index, step, variants)
    images = min(inputs[0].shape[0], program.images)

    def run(variant: Variant) -> None:
        program.use(index, prepared[variant])
        program.run(program.op_of_step[index], 1, images, inputs, outputs)

    best = variants[0]
    if len(variants) > 1:
        seconds = fastest({variant: partial(run, variant) for variant in variants}, program.threads)
        best = min(variants, key=lambda variant: seconds[variant])
    program.use(index, prepared[best])
    return best


def _prepare(program: Program, index: int, step: ConvolutionStep, variants: list[Variant]) -> dict[Variant, PreparedOp]:
    """The candidates ready to run; those that differ in the tile only share their weights."""
    prepared: dict[Variant, PreparedOp] = {}
    direct = None
    for variant in variants:
        if variant.sparse and not variant.aligned and step.before is None:
            direct = direct or program.prepare(index, variant)
            prepared[variant] = direct.retiled(variant.tile_vectors)
        else:
            prepared[variant] = program.prepare(index, variant)
    return prepared
