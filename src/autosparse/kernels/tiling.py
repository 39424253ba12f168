"""How the pixels of a pass are dealt out to lanes and registers: estimates of time, and the search for the least."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

Pair = tuple[int, int]
FLOAT_BYTES = 4

# Bytes of packed input that one block of channels may take: small enough to stay in the nearest caches, large enough
# that a row of a block has several non-zeros.
BLOCK_BYTES = 48 * 1024
# With images last: by whether pixels have neighbours in the window, and what sums that wait for the next block may take.
WINDOW_BLOCK_BYTES, POINT_BLOCK_BYTES = 32 * 1024, 48 * 1024
WAITING_BYTES = 384 * 1024

# What the search for a tiling assumes; only its ratios matter. Times are in vector multiply-adds.
ASSUMED_DENSITY = 0.1
ENTRY_OVERHEAD = 2.0
PACK_COST = 6.0


@dataclass(frozen=True)
class VectorUnit:
    """The registers that kernels use, and the bytes of a cell of their packed tiles."""

    lanes: int
    max_vectors: int  # of a tile with channels last
    max_tile: int  # with images last
    cell_bytes: int = FLOAT_BYTES


@dataclass(frozen=True)
class Work:
    """What a pass computes: pixels of a grid, each from a window of `extent` input pixels, `step` apart."""

    images: int
    grid: Pair
    extent: Pair
    step: Pair
    in_channels: int
    out_channels: int
    taps: float  # that a pixel of the grid sees, of several grids the mean

    @property
    def entries(self) -> float:
        return ASSUMED_DENSITY * self.in_channels * self.out_channels * self.taps

    @property
    def is_pointwise(self) -> bool:
        return self.extent == (1, 1)


@dataclass(frozen=True)
class Tiling:
    """How a grid is dealt out to lanes (patches) and to registers (tiles)."""

    lanes: int
    patch: Pair
    patches: Pair
    tile: Pair
    interleaved: bool = False  # neighbouring pixels in neighbouring lanes, not in neighbouring registers

    @property
    def site_step(self) -> int:
        return 1 if self.interleaved else self.patch[1]

    @property
    def pixel_step(self) -> int:
        return self.lanes if self.interleaved else 1

    def tiles(self, images: int) -> int:
        sites = images * self.patches[0] * self.patches[1]
        return math.ceil(sites / self.lanes) * math.prod(math.ceil(p / t) for p, t in zip(self.patch, self.tile, strict=True))


def row_tiling(pixels: int, unit: VectorUnit) -> Tiling:
    """One long row: every lane takes each lanes-th pixel, so that a tile is one stretch of memory."""
    vectors = math.ceil(pixels / unit.lanes)
    width = math.ceil(vectors / math.ceil(vectors / unit.max_vectors)) if vectors else 1
    return Tiling(unit.lanes, (1, vectors), (1, unit.lanes), (1, width), interleaved=True)


def patch_tiling(work: Work, unit: VectorUnit) -> Tiling:
    """Lanes are patches of images: few idle lanes, full tiles, small halos."""
    best, least = Tiling(unit.lanes, work.grid, (1, 1), (1, 1)), math.inf
    counts = [2**k for k in range(unit.lanes.bit_length())]
    for patches in ((down, across) for down in counts for across in counts if down * across <= unit.lanes):
        patch = (math.ceil(work.grid[0] / patches[0]), math.ceil(work.grid[1] / patches[1]))
        sites = math.ceil(work.images * patches[0] * patches[1] / unit.lanes)
        for tile in _tiles(patch, unit.max_vectors):
            cost = sites * _seconds(work, patch, tile, patch[0] * patch[1])
            if cost < least:
                best, least = Tiling(unit.lanes, patch, patches, tile), cost
    return best


def images_tiling(work: Work, unit: VectorUnit) -> Tiling:
    """Lanes are images: every patch is a whole one. A pixel's neighbours in a row lie behind it, as pairs of registers."""

    def cost(tile: Pair) -> float:
        down, across = (math.ceil(size / length) for size, length in zip(work.grid, tile, strict=True))
        # both gradients of a pointwise pass compute whole tiles
        vectors = down * across * tile[0] * tile[1] if work.is_pointwise else work.grid[0] * work.grid[1]
        return _seconds(work, work.grid, tile, vectors)

    # one row at a time where rows share nothing: longer stretches of memory
    allowed = (1, work.grid[1]) if work.is_pointwise else work.grid
    return Tiling(unit.lanes, work.grid, (1, 1), min(_tiles(allowed, unit.max_tile), key=cost))


def images_block(work: Work, tile: Pair, slots: int, unit: VectorUnit) -> int:
    """Input channels that are packed at a time with images last: all, where too many sums would wait for the next block."""
    waiting = work.out_channels * tile[0] * tile[1] * unit.lanes * FLOAT_BYTES
    if waiting > WAITING_BYTES:
        return work.in_channels
    block_bytes = POINT_BLOCK_BYTES if work.is_pointwise else WINDOW_BLOCK_BYTES
    return block_bytes // (slots * unit.lanes * unit.cell_bytes)


def _tiles(patch: Pair, most: int) -> Iterable[Pair]:
    """Every tile of at most so many vectors."""
    for rows in range(1, min(most, patch[0]) + 1):
        for cols in range(1, min(most // rows, patch[1]) + 1):
            yield rows, cols


def _seconds(work: Work, patch: Pair, tile: Pair, vectors: int) -> float:
    """Of one site, cut into tiles of this size, which multiply so many vectors."""
    down, packed_rows = _cut(patch[0], tile[0], work.extent[0], work.step[0])
    across, packed_cols = _cut(patch[1], tile[1], work.extent[1], work.step[1])
    multiply = work.entries * (vectors + ENTRY_OVERHEAD * down * across)
    return multiply + PACK_COST * (work.in_channels + work.out_channels) * packed_rows * packed_cols


def _cut(length: int, size: int, extent: int, step: int) -> Pair:
    """Along one axis: how many tiles, and how many input pixels they pack together."""
    pieces = math.ceil(length / size)
    shared = min(step, extent)  # neighbouring pixels of a tile share what their windows have in common
    return pieces, length * shared + pieces * (extent - shared)
