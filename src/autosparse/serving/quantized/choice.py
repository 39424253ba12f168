"""Chooses for every product of a quantized region how it is computed, by measuring in place."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from autosparse.kernels.byte_table import ByteKernels
from autosparse.serving.choice import even_tile, fastest
from autosparse.serving.quantized.operations import ByteProduct, ByteVariant
from autosparse.serving.quantized.program import ByteProgram
from autosparse.serving.quantized.steps import QuantizedConvolution
from autosparse.serving.steps import ConvolutionStep

TILE_CHUNKS = (2, 3, 4, 6, 8, 12)
# Blocks whose estimated work is at most this many times the least are measured.
WORTH_A_TRY = 1.4


def work(product: ByteProduct, block: int) -> int:
    """Loads, shuffles and dot products of a vector of pixels, in units of one row's dot products: shared ones count as two."""
    rows, columns = product.weight.shape
    padded = torch.zeros(-(-rows // block) * block, columns, dtype=torch.bool)
    padded[:rows] = product.weight != 0
    counts = padded.view(-1, block, columns).any(1).sum(1)
    return int((-(-counts // 4)).sum()) * (2 + block)


def candidates(product: ByteProduct, chunks: int, kernels: ByteKernels) -> list[ByteVariant]:
    """What is worth measuring for an output of so many chunks."""
    costs = {block: work(product, block) for block in product.blocks}
    blocks = [block for block, cost in costs.items() if cost <= WORTH_A_TRY * min(costs.values())]
    return [ByteVariant(block, tile) for block in blocks for tile in tiles(chunks, kernels.max_chunks(block))]


def tiles(chunks: int, most: int) -> list[int]:
    return sorted({_whole_lines(even_tile(chunks, min(tile, most)), chunks, most) for tile in TILE_CHUNKS})


def _whole_lines(tile: int, chunks: int, most: int) -> int:
    """A tile after which the next one begins with a cache line, which is read twice as fast."""
    return tile if tile == 1 or tile >= chunks else min(tile + tile % 2, most - most % 2)


def products(program: ByteProgram) -> dict[int, QuantizedConvolution]:
    """The convolutions of a program by the step's number."""
    return {index: step for index, step in enumerate(program.region.steps) if isinstance(step, QuantizedConvolution)}


def possible(program: ByteProgram, index: int, step: ConvolutionStep) -> list[ByteVariant]:
    product = program.operations.product(step, program.grid_of(step), step.in_channels)
    return candidates(product, program.grid_of(step).chunks, program.kernels)


def choose(program: ByteProgram, inputs: list[Tensor]) -> dict[int, ByteVariant]:
    """Measure every convolution on these inputs and use what is fastest."""
    outputs = program(inputs)
    return {index: _choose_one(program, index, step, inputs, outputs) for index, step in products(program).items()}


def _choose_one(
    program: ByteProgram, index: int, step: QuantizedConvolution, inputs: list[Tensor], outputs: list[Tensor]
) -> ByteVariant:
    variants = possible(program, index, step)
    packed = {variant.block: program.prepare(index, variant) for variant in variants}
    images = min(inputs[0].shape[0], program.images)

    def run(variant: ByteVariant) -> None:
        program.use(index, packed[variant.block].retiled(variant.tile_chunks))
        program.run(program.op_of_step[index], 1, images, inputs, outputs)

    best = variants[0]
    if len(variants) > 1:
        seconds = fastest({variant: partial(run, variant) for variant in variants}, program.threads)
        best = min(variants, key=lambda variant: seconds[variant])
    program.use(index, packed[best.block].retiled(best.tile_chunks))
    return best
