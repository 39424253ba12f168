"""Where the engine's tensors lie: grids with zero borders, and planes that are reused after their last reader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from autosparse.kernels.geometry import Geometry
from autosparse.serving.steps import ConcatStep, ConvolutionStep, Pair, PoolStep, Region, Step

LINE = 16  # floats of a cache line


class NotOnGridError(ValueError):
    """A step that the engine's layout cannot hold; torch computes it."""


@dataclass(frozen=True)
class Extent:
    """A value's size, and the size of the grid it lies on: all values of one grid have their pixels at the same places."""

    channels: int
    size: Pair
    grid: Pair


@dataclass(frozen=True)
class Taps:
    """A window on the grid of its output: for every tap the phase it reads (0 without a stride) and its shift."""

    step: int
    places: tuple[tuple[int, int, int], ...]  # phase, rows, cols

    @property
    def phases(self) -> tuple[int, ...]:
        return tuple(sorted({phase for phase, _, _ in self.places}))


def taps_of(kernel: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> Taps:
    """Row tap i reads input row stride * r + i * dilation - padding: phase and shift are its remainder and quotient."""
    if stride[0] != stride[1]:
        raise NotOnGridError(f"strides {stride} differ")
    step = stride[0]
    places = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            row, top = divmod(i * dilation[0] - padding[0], step)
            col, left = divmod(j * dilation[1] - padding[1], step)
            places.append((top * step + left, row, col))
    return Taps(step, tuple(places))


def step_taps(step: ConvolutionStep | PoolStep) -> Taps:
    return taps_of(step.kernel, step.stride, step.padding, step.dilation)


def _windowed(step: ConvolutionStep | PoolStep, source: Extent, channels: int) -> Extent:
    size = Geometry(step.stride, step.padding, step.dilation).out_size(source.size, step.kernel)
    across = step_taps(step).step
    grid = -(-source.grid[0] // across), -(-source.grid[1] // across)
    if min(size) < 1 or size[0] > grid[0] or size[1] > grid[1]:
        raise NotOnGridError(f"an output of {size} does not fit on a grid of {grid}")
    return Extent(channels, size, grid)


def extent_after(step: Step, sources: list[Extent]) -> Extent:
    """The extent of a step's result."""
    first = sources[0]
    if isinstance(step, ConvolutionStep) and first.channels != (step.before or step).in_channels:
        raise NotOnGridError(f"{step.name} cannot read {first.channels} channels")
    if isinstance(step, ConcatStep):
        if any((source.size, source.grid) != (first.size, first.grid) for source in sources):
            raise NotOnGridError(f"{sources} do not lie alike")
        return Extent(sum(source.channels for source in sources), first.size, first.grid)
    result = first
    if isinstance(step, ConvolutionStep):
        inner = _windowed(step.before, first, step.in_channels) if step.before is not None else first
        result = _windowed(step, inner, step.out_channels)
    elif isinstance(step, PoolStep):
        result = _windowed(step, first, first.channels)
    if any(source != result for source in sources[1:]):
        raise NotOnGridError(f"{sources[1:]} cannot be added to {result}")
    return result


def extents(region: Region, shapes: list[tuple[int, int, int]]) -> dict[int, Extent]:
    """Every value's extent, given (channels, rows, cols) of the region's inputs."""
    sizes = {value: Extent(shape[0], shape[1:], shape[1:]) for value, shape in zip(region.inputs, shapes, strict=True)}
    for step in region.steps:
        sizes[step.output] = extent_after(step, [sizes[value] for value in step.inputs])
    return sizes


class PlanePool:
    """Numbers of planes: handed out first fit, taken back."""

    def __init__(self) -> None:
        self.count = 0
        self._free: list[tuple[int, int]] = []

    def take(self, count: int, *, fresh: bool = False) -> int:
        """The first of `count` planes in a row; fresh ones were never written to."""
        if not fresh:
            for place, (begin, size) in enumerate(self._free):
                if size >= count:
                    self._free[place : place + 1] = [(begin + count, size - count)] if size > count else []
                    return begin
        self.count += count
        return self.count - count

    def give_back(self, begin: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, length in sorted([*self._free, (begin, size)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = merged[-1][0], merged[-1][1] + length
            else:
                merged.append((start, length))
        self._free = merged


@dataclass
class Grid:
    """Pixels of a group of images in one flat stretch; `gap` separates rows and images, taps reach `back` and `ahead`."""

    size: Pair
    images: int
    lanes: int  # pixels of a vector
    gap: Pair = (0, 0)
    back: Pair = (0, 0)
    ahead: Pair = (0, 0)
    # by zero point: what lies in the gaps
    pools: defaultdict[int, PlanePool] = field(default_factory=lambda: defaultdict(PlanePool))

    mask: ClassVar[torch.dtype]  # integers as large as the numbers of planes

    def need(self, taps: Taps, result: Pair) -> None:
        """Make room for a window's taps around results of this size."""
        rows, cols = [row for _, row, _ in taps.places], [col for _, _, col in taps.places]
        lowest, highest = (min(rows), min(cols)), (max(rows), max(cols))
        beyond = [result[axis] - 1 + highest[axis] - (self.size[axis] - 1) for axis in (0, 1)]
        self.gap = _larger(self.gap, (max(-lowest[0], beyond[0]), max(-lowest[1], beyond[1])))
        self.back = _larger(self.back, (-lowest[0], -lowest[1]))
        self.ahead = _larger(self.ahead, highest)

    @property
    def row_pixels(self) -> int:
        return self.size[1] + self.gap[1]

    @property
    def image_pixels(self) -> int:
        return (self.size[0] + self.gap[0]) * self.row_pixels

    @property
    def vectors(self) -> int:
        last = (self.images - 1) * self.image_pixels + (self.size[0] - 1) * self.row_pixels + self.size[1]
        return -(-last // self.lanes)

    @property
    def plane_pixels(self) -> int:
        raise NotImplementedError

    @property
    def lead_pixels(self) -> int:
        """From where a plane's memory begins to its first pixel."""
        raise NotImplementedError

    def pool_pixels(self, zero_point: int) -> int:
        """Memory of the planes with this zero point."""
        return self.pools[zero_point].count * self.plane_pixels

    def offset(self, rows: int, cols: int) -> int:
        return rows * self.row_pixels + cols

    def places(self, taps: Taps, channels: int = 1) -> Tensor:
        """Where taps lie in the planes of these channels, phase by phase."""
        begin = {phase: number * channels * self.plane_pixels for number, phase in enumerate(taps.phases)}
        return torch.tensor([begin[phase] + self.offset(row, col) for phase, row, col in taps.places])

    def valid(self, size: Pair) -> Tensor:
        """All bits set where a value of this size has a pixel."""
        flat = torch.zeros(self.vectors * self.lanes + self.image_pixels, dtype=self.mask)
        for image in range(self.images):
            place = flat[image * self.image_pixels :][: self.image_pixels].view(-1, self.row_pixels)
            place[: size[0], : size[1]].bitwise_not_()
        return flat[: self.vectors * self.lanes].clone()


class PlaneGrid(Grid):
    """Planes of floats, each with zeros before its first pixel and behind its last one."""

    mask = torch.int32

    @property
    def lead_pixels(self) -> int:
        return _lines(self.offset(*self.back)) * LINE

    @property
    def plane_pixels(self) -> int:
        # strided loads and the last vector of a tap run over the end
        lines = _lines(self.lead_pixels + self.vectors * self.lanes + self.offset(*self.ahead) + 2 * LINE)
        # an odd number of cache lines: else all channels would compete for the same few sets of the cache
        return (lines + 1 - lines % 2) * LINE


def _larger(a: Pair, b: Pair) -> Pair:
    return max(a[0], b[0]), max(a[1], b[1])


def _lines(floats: int) -> int:
    return -(-floats // LINE)


def grids_for(region: Region, sizes: dict[int, Extent], new: Callable[[Pair], Grid]) -> dict[Pair, Grid]:
    """The grids of a region, with room for every window."""
    grids = {extent.grid: new(extent.grid) for extent in sizes.values()}
    for step in region.steps:
        result = sizes[step.output]
        if isinstance(step, ConvolutionStep | PoolStep):
            grids[result.grid].need(step_taps(step), result.size)
        if isinstance(step, ConvolutionStep) and step.before is not None:
            grids[result.grid].need(step_taps(step.before), result.size)
    return grids
