"""Chooses how every convolution of a program is computed, by measuring the candidates where the values really lie."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TypeVar

from torch import Tensor

from autosparse.kernels.library import Engine
from autosparse.serving.layout import Grid
from autosparse.serving.operations import Product, Variant
from autosparse.serving.program import Program
from autosparse.serving.steps import Convolution, Region

TILE_VECTORS = (4, 6, 8, 11, 14)
FIRST_TILE = 7
DENSE_TILE = 4
# Above this density nothing was ever faster sparse; below the other one nothing was ever faster dense.
MOST_SPARSE_DENSITY, LEAST_DENSE_DENSITY = 0.7, 0.12
ALIGNED_TILES = 3  # the copies of larger tiles leave the nearer caches
ROUNDS = 4

Key = TypeVar("Key", bound=Hashable)


def density(step: Convolution) -> float:
    return float((step.weight != 0).sum()) / max(step.weight.numel(), 1)


def even_tile(vectors: int, tile: int) -> int:
    """At most `tile`, with the last tile as full as the others."""
    tiles = -(-vectors // min(tile, vectors))
    return -(-vectors // tiles)


def needs_variant(step: object) -> bool:
    return isinstance(step, Convolution) and not step.depthwise


def first_guess(region: Region) -> dict[int, Variant]:
    """A working variant for every convolution, before anything is measured."""
    found = {}
    for index, step in enumerate(region.steps):
        if isinstance(step, Convolution) and needs_variant(step):
            sparse = step.groups > 1 or density(step) <= MOST_SPARSE_DENSITY
            found[index] = Variant(sparse, FIRST_TILE if sparse else DENSE_TILE)
    return found


def candidates(step: Convolution, grid: Grid, engine: Engine) -> list[Variant]:
    """What is worth measuring."""
    found = []
    share = density(step)
    if step.groups > 1 or share <= MOST_SPARSE_DENSITY:
        tiles = sorted({even_tile(grid.vectors, min(tile, engine.max_vectors)) for tile in TILE_VECTORS})
        found += [Variant(True, tile) for tile in tiles]
        if step.kernel != (1, 1) and step.stride == (1, 1):
            found += [Variant(True, tile, aligned=True) for tile in tiles[:ALIGNED_TILES]]
    if step.groups == 1 and share >= LEAST_DENSE_DENSITY:
        found.append(Variant(False, DENSE_TILE))
    return found


def fastest(
    calls: Mapping[Key, Callable[[], object]], threads: int, rounds: int = ROUNDS, before: Callable[[], object] | None = None
) -> dict[Key, float]:
    """Least seconds of each call, taken in turn, each after `before` or after another call of its own.

    On one thread it is processor time, which other programs disturb least.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    least: dict[Key, float] = {}
    for _ in range(rounds):
        for key, call in calls.items():
            (before or call)()
            begin = clock()
            call()
            took = clock() - begin
            least[key] = min(took, least.get(key, took))
    return least


def _products(program: Program, index: int, options: list[Variant]) -> dict[Variant, Product]:
    """The candidates ready to run; those that differ in the tile only share their weights."""
    step = program.region.steps[index]
    assert isinstance(step, Convolution)
    made: dict[Variant, Product] = {}
    direct = None
    for variant in options:
        if variant.sparse and not variant.aligned and step.before is None:
            direct = direct or program.product(index, variant)
            made[variant] = program.operations.retile(direct, variant.tile_vectors)
        else:
            made[variant] = program.product(index, variant)
    return made


def choose(program: Program, inputs: list[Tensor]) -> dict[int, Variant]:
    """Measure every convolution on these inputs and use what is fastest."""
    outputs = program(inputs)
    return {
        index: _choose_one(program, index, inputs, outputs)
        for index, step in enumerate(program.region.steps)
        if needs_variant(step)
    }


def _choose_one(program: Program, index: int, inputs: list[Tensor], outputs: list[Tensor]) -> Variant:
    step = program.region.steps[index]
    assert isinstance(step, Convolution)
    options = candidates(step, program.grids[program.sizes[step.output].grid], program.engine)
    products = _products(program, index, options)
    images = min(inputs[0].shape[0], program.images)

    def run(variant: Variant) -> None:
        program.use(index, products[variant])
        program.run(program.op_of_step[index], 1, images, inputs, outputs)

    best = options[0]
    if len(options) > 1:
        seconds = fastest({variant: partial(run, variant) for variant in options}, program.threads)
        best = min(options, key=lambda variant: seconds[variant])
    program.use(index, products[best])
    return best
