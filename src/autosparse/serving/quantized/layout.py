"""Where bytes lie: planes whose gaps hold the zero point, the gap after a plane serving as the one before the next."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from autosparse.kernels.byte_table import BYTES_BEHIND, CHUNK_PIXELS
from autosparse.serving.layout import Extent, PlanePool, WindowRoom, step_taps
from autosparse.serving.steps import ConvolutionStep, Pair, PoolStep, Region

LINE = 64  # bytes of a cache line


@dataclass
class ByteGrid(WindowRoom):
    """Pixels of a group of images in one flat stretch; `gap` bytes separate rows and images, taps reach `back` and `ahead`."""

    size: Pair
    images: int
    gap: Pair = (0, 0)
    back: Pair = (0, 0)
    ahead: Pair = (0, 0)
    pools: dict[int, PlanePool] = field(default_factory=dict)  # by zero point: what lies in the gaps

    @property
    def row_bytes(self) -> int:
        return self.size[1] + self.gap[1]

    @property
    def image_bytes(self) -> int:
        return (self.size[0] + self.gap[0]) * self.row_bytes

    @property
    def chunks(self) -> int:
        last = (self.images - 1) * self.image_bytes + (self.size[0] - 1) * self.row_bytes + self.size[1]
        return -(-last // CHUNK_PIXELS)

    @property
    def plane_bytes(self) -> int:
        lines = -(-max(self.images * self.image_bytes, self.chunks * CHUNK_PIXELS) // LINE)
        # an odd number of cache lines: else all channels would compete for the same few sets of the cache
        return (lines + (lines > 1 and lines % 2 == 0)) * LINE

    @property
    def around_bytes(self) -> int:
        """Room before the first plane and behind the last one."""
        reach = max(self.offset(*self.back), self.offset(*self.ahead))
        return -(-(reach + BYTES_BEHIND) // LINE) * LINE

    def offset(self, rows: int, cols: int) -> int:
        return rows * self.row_bytes + cols

    def pool(self, zero_point: int) -> PlanePool:
        return self.pools.setdefault(zero_point, PlanePool())

    def valid(self, size: Pair) -> Tensor:
        """255 where a value of this size has a pixel."""
        flat = torch.zeros(self.images * self.image_bytes + self.chunks * CHUNK_PIXELS, dtype=torch.uint8)
        for image in range(self.images):
            place = flat[image * self.image_bytes :][: self.image_bytes].view(-1, self.row_bytes)
            place[: size[0], : size[1]] = 255
        return flat[: self.chunks * CHUNK_PIXELS].clone()


def byte_grids(region: Region, sizes: dict[int, Extent], images: int) -> dict[Pair, ByteGrid]:
    """The grids of a region, with room for every window."""
    grids = {extent.grid: ByteGrid(extent.grid, images) for extent in sizes.values()}
    for step in region.steps:
        if isinstance(step, ConvolutionStep | PoolStep):
            result = sizes[step.output]
            grids[result.grid].need(step_taps(step), result.size)
    return grids
