"""Where bytes lie: planes whose gaps hold the zero point, the gap after a plane serving as the one before the next."""

from __future__ import annotations

import torch

from autosparse.kernels.byte_table import BYTES_BEHIND, CHUNK_PIXELS
from autosparse.serving.layout import Grid

LINE = 64  # bytes of a cache line


class ByteGrid(Grid):
    """Planes in a row; vectors are chunks."""

    mask = torch.uint8

    @property
    def chunks(self) -> int:
        return self.vectors

    @property
    def plane_pixels(self) -> int:
        lines = -(-max(self.images * self.image_pixels, self.chunks * CHUNK_PIXELS) // LINE)
        # an odd number of cache lines: else all channels would compete for the same few sets of the cache
        return (lines + (lines > 1 and lines % 2 == 0)) * LINE

    @property
    def lead_pixels(self) -> int:
        """Room before the first plane; there is as much behind the last one."""
        reach = max(self.offset(*self.back), self.offset(*self.ahead))
        return -(-(reach + BYTES_BEHIND) // LINE) * LINE

    def pool_pixels(self, zero_point: int) -> int:
        return super().pool_pixels(zero_point) + 2 * self.lead_pixels
