"""Geometry of the kernels in plain Python: how a layer becomes gather passes, and how a pass is cut into tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from autosparse.kernels.tiling import (
    BLOCK_BYTES,
    FLOAT_BYTES,
    Pair,
    Tiling,
    VectorUnit,
    Work,
    images_block,
    images_tiling,
    patch_tiling,
    row_tiling,
)

INT32_MAX = 2**31 - 1
# A packed tile with all the pixels that its window spans: far above any useful size, far below what int32 offsets reach.
MAX_TILE_BYTES = 2**26


@dataclass(frozen=True)
class Geometry:
    """The arguments of a convolution besides its tensors."""

    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int = 1

    @classmethod
    def of(
        cls,
        kernel: Sequence[int],
        stride: int | Sequence[int],
        padding: int | Sequence[int] | str,
        dilation: int | Sequence[int],
        groups: int,
    ) -> tuple[Geometry, Pair]:
        """From arguments as torch takes them, with what "same" adds at the end of the rows and columns alone."""
        steps, spread = _pair(stride, "stride"), _pair(dilation, "dilation")
        if not isinstance(padding, str):
            return cls(steps, _pair(padding, "padding"), spread, groups), (0, 0)
        if padding == "valid":
            return cls(steps, (0, 0), spread, groups), (0, 0)
        if padding != "same" or steps != (1, 1):
            raise ValueError(
                f"sparse_conv2d: padding={padding!r} with stride {steps}; allowed: numbers, 'valid', 'same' with stride 1"
            )
        down, across = (step * (size - 1) for step, size in zip(spread, kernel, strict=True))
        return cls(steps, (down // 2, across // 2), spread, groups), (down % 2, across % 2)

    def out_size(self, in_size: Sequence[int], kernel: Sequence[int]) -> Pair:
        """Rows and columns of the result."""
        rows, cols = (
            (size + 2 * padding - dilation * (width - 1) - 1) // stride + 1
            for size, width, padding, dilation, stride in zip(
                in_size, kernel, self.padding, self.dilation, self.stride, strict=True
            )
        )
        return rows, cols


def _pair(value: int | Sequence[int], name: str) -> Pair:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2:
        raise ValueError(f"sparse_conv2d: {name}={value!r}; it must be one number or two")
    return pair


@dataclass(frozen=True)
class Convolution:
    """Sizes of a 2d convolution; a linear layer is one with a kernel of 1 over a single row of pixels."""

    images: int
    in_channels: int
    in_size: Pair
    out_channels: int
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    images_last: bool = False  # the order of its tensors

    @property
    def out_size(self) -> Pair:
        return Geometry(self.stride, self.padding, self.dilation).out_size(self.in_size, self.kernel)

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def is_pointwise(self) -> bool:
        """Whether every input pixel is seen by one output pixel, at the same place."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    def simplified(self) -> Convolution:
        """With channels last and without a window images and rows mean nothing: every pixel is one of a single row."""
        if self.is_pointwise and not self.images_last:
            pixels = self.images * self.in_size[0] * self.in_size[1]
            return Convolution(1, self.in_channels, (1, pixels), self.out_channels)
        return self


@dataclass(frozen=True)
class Tap:
    """One kernel position that a pass uses, and the input pixel it reads, relative to the window's corner."""

    index: int
    row: int
    col: int


@dataclass(frozen=True)
class Grid:
    """The pixels that a pass computes: every `out_step`-th from `out_first`, reading `in_step` apart from `in_first`."""

    size: Pair
    out_first: Pair
    out_step: Pair
    in_first: Pair
    in_step: Pair
    taps: tuple[Tap, ...]


@dataclass(frozen=True)
class Window:
    """The packed input of a tile: its size in pixels, and the order of its slots."""

    size: Pair
    slots_per_row: int
    col_step: int
    lanes: int

    def offset(self, row: int, col: int) -> int:
        """Where a pixel of the window begins in a channel of the packed tile, in floats."""
        per_remainder = self.slots_per_row // self.col_step
        return (row * self.slots_per_row + col % self.col_step * per_remainder + col // self.col_step) * self.lanes

    @property
    def channel_stride(self) -> int:
        return self.size[0] * self.slots_per_row * self.lanes


@dataclass(frozen=True)
class Plane:
    """One side of a pass: channels and size of a channels_last tensor."""

    channels: int
    size: Pair


@dataclass(frozen=True)
class PassGroup:
    """Passes that share one tiling, one window and one compressed weight: a forward pass, or all phases of a gradient."""

    images: int
    source: Plane
    target: Plane
    grids: tuple[Grid, ...]
    tiling: Tiling
    window: Window
    block_channels: int
    covers_target: bool  # else pixels that no grid reaches are zero

    @cached_property
    def blocks(self) -> int:
        return math.ceil(self.source.channels / self.block_channels)

    @cached_property
    def tiles(self) -> int:
        """Tiles of one grid: as many for a small grid as for the largest, since they share the tiling."""
        return self.tiling.tiles(self.images)

    def used(self, grid: Grid) -> tuple[list[bool], list[bool]]:
        """Rows and columns of the window that some tap of the grid reads for some pixel of a tile."""
        rows, cols = [False] * self.window.size[0], [False] * self.window.size[1]
        for tap in grid.taps:
            for i in range(self.tiling.tile[0]):
                rows[tap.row + i * grid.in_step[0]] = True
            for j in range(self.tiling.tile[1]):
                cols[tap.col + j * grid.in_step[1]] = True
        return rows, cols


def forward_grid(conv: Convolution) -> Grid:
    taps = tuple(
        Tap(a * conv.kernel[1] + b, a * conv.dilation[0], b * conv.dilation[1])
        for a in range(conv.kernel[0])
        for b in range(conv.kernel[1])
    )
    return Grid(conv.out_size, (0, 0), (1, 1), (-conv.padding[0], -conv.padding[1]), conv.stride, taps)


def gradient_grids(conv: Convolution) -> tuple[Grid, ...]:
    """The input gradient by phases: input pixels with one remainder modulo the stride see the same taps."""
    axes = [_phases(conv, axis) for axis in (0, 1)]
    return tuple(
        Grid(
            size=(down.size, across.size),
            out_first=(down.first, across.first),
            out_step=conv.stride,
            in_first=(down.corner, across.corner),
            in_step=(1, 1),
            taps=tuple(Tap(a * conv.kernel[1] + b, row, col) for a, row in down.taps for b, col in across.taps),
        )
        for down in axes[0]
        for across in axes[1]
    )


@dataclass(frozen=True)
class _Phase:
    first: int
    size: int
    corner: int
    taps: tuple[Pair, ...]  # (kernel position, pixel of the window)


def _phases(conv: Convolution, axis: int) -> list[_Phase]:
    """The phases of one axis that have any tap."""
    size, kernel, stride, padding, dilation = (
        values[axis] for values in (conv.in_size, conv.kernel, conv.stride, conv.padding, conv.dilation)
    )
    phases = []
    for first in range(min(stride, size)):
        reach = {k: first + padding - k * dilation for k in range(kernel)}
        taps = {k: distance // stride for k, distance in reach.items() if distance % stride == 0}
        if taps:
            corner = min(taps.values())
            phases.append(
                _Phase(first, math.ceil((size - first) / stride), corner, tuple((k, t - corner) for k, t in taps.items()))
            )
    return phases


@lru_cache(maxsize=1024)
def forward_group(conv: Convolution, unit: VectorUnit) -> PassGroup:
    """The forward pass; the weight gradient has the same geometry."""
    source, target = Plane(conv.in_channels, conv.in_size), Plane(conv.out_channels, conv.out_size)
    return _group(conv, source, target, (forward_grid(conv),), True, unit)


@lru_cache(maxsize=1024)
def gradient_group(conv: Convolution, unit: VectorUnit) -> PassGroup | None:
    """The passes of the input gradient; None if no input pixel reaches the output."""
    source, target = Plane(conv.out_channels, conv.out_size), Plane(conv.in_channels, conv.in_size)
    grids = gradient_grids(conv)
    phases = min(conv.stride[0], conv.in_size[0]) * min(conv.stride[1], conv.in_size[1])
    return _group(conv, source, target, grids, len(grids) == phases, unit) if grids else None


def _group(
    conv: Convolution, source: Plane, target: Plane, grids: tuple[Grid, ...], covers: bool, unit: VectorUnit
) -> PassGroup:
    work = _work_of(conv, source, target, grids)
    tiling = _tiling(conv, work, unit)
    size = ((tiling.tile[0] - 1) * work.step[0] + work.extent[0], (tiling.tile[1] - 1) * work.step[1] + work.extent[1])
    window = Window(size, math.ceil(size[1] / work.step[1]) * work.step[1], work.step[1], unit.lanes)
    group = PassGroup(conv.images, source, target, grids, tiling, window, 1, covers)
    _check_limits(group)
    slots = max(sum(rows) * sum(cols) for rows, cols in map(group.used, grids))
    if conv.images_last:
        most = images_block(work, tiling.tile, slots, unit)
    else:
        most = BLOCK_BYTES // (slots * unit.lanes * unit.cell_bytes)
    most = min(most, MAX_TILE_BYTES // (window.channel_stride * FLOAT_BYTES))
    group = replace(group, block_channels=_block_channels(source.channels, max(1, most), unit.lanes))
    if group.blocks * target.channels * len(grids) > INT32_MAX // 2:
        raise ValueError(
            f"a compressed weight of {group.blocks * target.channels * len(grids)} rows is too large; compute densely"
        )
    return group


def _work_of(conv: Convolution, source: Plane, target: Plane, grids: tuple[Grid, ...]) -> Work:
    largest = (max(grid.size[0] for grid in grids), max(grid.size[1] for grid in grids))
    taps = [tap for grid in grids for tap in grid.taps]
    extent = (max(tap.row for tap in taps) + 1, max(tap.col for tap in taps) + 1)
    return Work(conv.images, largest, extent, grids[0].in_step, source.channels, target.channels, conv.taps / len(grids))


def _tiling(conv: Convolution, work: Work, unit: VectorUnit) -> Tiling:
    if conv.images_last:
        return images_tiling(work, unit)
    if conv.images == 1 and work.grid[0] == 1 and work.is_pointwise and work.step == (1, 1):
        return row_tiling(work.grid[1], unit)
    return patch_tiling(work, unit)


def _block_channels(channels: int, most: int, lanes: int) -> int:
    """Channels of a block: up to `most`, blocks of equal size, whole vectors."""
    if channels <= most:
        return channels
    block = math.ceil(channels / math.ceil(channels / most))
    return min(channels, math.ceil(block / lanes) * lanes) if block > lanes else block


def _check_limits(group: PassGroup) -> None:
    """The kernels count pixels and offsets in int32, with room for the size of a tile."""
    reached = max(
        *(abs(n) for grid in group.grids for n in (*grid.in_first, *grid.size)),
        *(*group.source.size, *group.target.size),
    )
    if reached > INT32_MAX // 2:
        raise ValueError(
            f"this layer is too large for the sparse kernels: a pixel has index {reached}, the limit is {INT32_MAX // 2}; "
            "compute it densely"
        )
    if group.window.channel_stride * FLOAT_BYTES > MAX_TILE_BYTES:
        raise ValueError(
            f"the window of this layer is too large for the sparse kernels: {group.window.size} pixels for a tile of "
            f"{group.tiling.tile}; compute it densely"
        )
