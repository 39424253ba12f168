"""Geometry: every grid, tap and tile where it should be; no native code needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosparse.kernels.geometry import (
    Convolution,
    Pair,
    PassGroup,
    Window,
    forward_grid,
    forward_group,
    gradient_grids,
    gradient_group,
)
from autosparse.kernels.tiling import VectorUnit

LANES, VECTORS, LARGEST_TILE = 16, 8, 16
UNIT = VectorUnit(LANES, VECTORS, LARGEST_TILE)


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    def pair(low: int, high: int) -> Pair:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    kernel, stride, padding, dilation = pair(1, 4), pair(1, 4), pair(0, 3), pair(1, 3)
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, p, d in zip(kernel, padding, dilation, strict=True)]
    size = draw(st.integers(least[0], least[0] + 20)), draw(st.integers(least[1], least[1] + 20))
    return Convolution(
        draw(st.integers(1, 40)), draw(st.integers(1, 600)), size, draw(st.integers(1, 600)), kernel, stride, padding, dilation,
        images_last=draw(st.booleans()),
    )  # fmt: skip


def test_forward_taps_by_hand() -> None:
    grid = forward_grid(Convolution(1, 1, (5, 5), 1, (2, 3), (2, 1), (1, 0), (1, 2)))
    assert grid.size == (3, 1)
    assert grid.in_first == (-1, 0)
    assert [(tap.index, tap.row, tap.col) for tap in grid.taps] == [
        (0, 0, 0), (1, 0, 2), (2, 0, 4), (3, 1, 0), (4, 1, 2), (5, 1, 4)
    ]  # fmt: skip


def test_gradient_phases_by_hand() -> None:
    """A 3x1 kernel of stride 2 and padding 1: even input rows see the middle tap, odd rows the outer two."""
    even, odd = gradient_grids(Convolution(1, 1, (4, 1), 1, (3, 1), (2, 1), (1, 0)))
    assert (even.out_first, even.size, [(t.index, t.row) for t in even.taps], even.in_first) == (
        (0, 0),
        (2, 1),
        [(1, 0)],
        (0, 0),
    )
    assert (odd.out_first, odd.size, [(t.index, t.row) for t in odd.taps], odd.in_first) == (
        (1, 0), (2, 1), [(0, 1), (2, 0)], (0, 0)
    )  # fmt: skip


@given(conv=convolutions())
@settings(deadline=None, max_examples=60)
def test_the_gradient_visits_the_pairs_of_the_forward_pass(conv: Convolution) -> None:
    """(input pixel, output pixel, tap) triples are the same, seen from either side."""
    rows, cols = conv.in_size
    seen = set()
    grid = forward_grid(conv)
    for oy in range(grid.size[0]):
        for ox in range(grid.size[1]):
            for tap in grid.taps:
                y = oy * grid.in_step[0] + grid.in_first[0] + tap.row
                x = ox * grid.in_step[1] + grid.in_first[1] + tap.col
                if 0 <= y < rows and 0 <= x < cols:
                    seen.add((y, x, oy, ox, tap.index))
    back = set()
    for grid in gradient_grids(conv):
        for gy in range(grid.size[0]):
            for gx in range(grid.size[1]):
                for tap in grid.taps:
                    oy, ox = gy + grid.in_first[0] + tap.row, gx + grid.in_first[1] + tap.col
                    y, x = grid.out_first[0] + gy * grid.out_step[0], grid.out_first[1] + gx * grid.out_step[1]
                    if 0 <= oy < conv.out_size[0] and 0 <= ox < conv.out_size[1]:
                        back.add((y, x, oy, ox, tap.index))
    assert back == seen


def groups(conv: Convolution) -> list[PassGroup]:
    found = [forward_group(conv.simplified(), UNIT), gradient_group(conv.simplified(), UNIT)]
    return [group for group in found if group is not None]


@given(conv=convolutions())
@settings(deadline=None)
def test_tiles_cover_every_pixel_once_and_fit_the_registers(conv: Convolution) -> None:
    for group in groups(conv):
        tiling = group.tiling
        assert 1 <= tiling.tile[0] * tiling.tile[1] <= (LARGEST_TILE if conv.images_last else VECTORS)
        for grid in group.grids:
            rows = [p * tiling.patch[0] + i for p in range(tiling.patches[0]) for i in range(tiling.patch[0])]
            cols = [
                p * tiling.site_step + j * tiling.pixel_step for p in range(tiling.patches[1]) for j in range(tiling.patch[1])
            ]
            for found, size in ((rows, grid.size[0]), (cols, grid.size[1])):
                assert sorted(found) == list(range(len(found)))
                assert len(found) >= size


@given(conv=convolutions())
@settings(deadline=None)
def test_what_a_tile_reads_lies_in_its_window(conv: Convolution) -> None:
    for group in groups(conv):
        rows, cols = group.window.size
        last = 0
        for grid in group.grids:
            used_rows, used_cols = group.used(grid)
            for tap in grid.taps:
                for i in range(group.tiling.tile[0]):
                    for j in range(group.tiling.tile[1]):
                        y, x = tap.row + i * grid.in_step[0], tap.col + j * grid.in_step[1]
                        assert y < rows
                        assert x < cols
                        assert used_rows[y]
                        assert used_cols[x]
                        # the kernels step from the tap's own offset
                        step = (i * grid.in_step[0] * group.window.slots_per_row + j) * LANES
                        assert group.window.offset(y, x) == group.window.offset(tap.row, tap.col) + step
                        last = max(last, group.window.offset(y, x))
        assert last + LANES <= group.window.channel_stride
        assert 1 <= group.block_channels <= group.source.channels


def test_slots_are_ordered_by_remainder() -> None:
    window = Window((1, 5), 6, 2, 1)
    assert [window.offset(0, col) for col in range(5)] == [0, 3, 1, 4, 2]


def test_a_pointwise_convolution_is_one_row_of_pixels() -> None:
    assert Convolution(4, 8, (5, 6), 9).simplified() == Convolution(1, 8, (1, 120), 9)
    strided = Convolution(4, 8, (5, 6), 9, stride=(2, 1))
    assert strided.simplified() == strided


@pytest.mark.parametrize("images", [1, 3, 16, 20, 100])
def test_few_lanes_are_idle(images: int) -> None:
    group = forward_group(Convolution(images, 64, (14, 14), 64, (3, 3), (1, 1), (1, 1)), UNIT)
    vectors = (
        -(-images * group.tiling.patches[0] * group.tiling.patches[1] // LANES) * group.tiling.patch[0] * group.tiling.patch[1]
    )
    assert images * 14 * 14 / (vectors * LANES) > 0.7


def test_what_int32_cannot_count_is_refused() -> None:
    with pytest.raises(ValueError, match="a pixel has index 3221225472"):
        forward_group(Convolution(1, 8, (1, 3 * 2**30), 8), UNIT)
    with pytest.raises(ValueError, match="window of this layer is too large"):
        forward_group(Convolution(1, 1, (2, 2), 1, (3, 3), (1, 1), (2**28, 2**28), (2**28, 2**28)), UNIT)
    with pytest.raises(ValueError, match="rows is too large"):
        forward_group(Convolution(1, 2**20, (1, 8), 2**24), UNIT)


def test_a_wide_dilation_keeps_its_tile_small() -> None:
    group = forward_group(Convolution(1, 64, (2000, 2000), 64, (3, 3), (1, 1), (0, 0), (300, 300)), UNIT)
    assert group.block_channels * group.window.channel_stride * 4 <= 2**26


def test_half_as_large_cells_make_blocks_of_twice_as_many_channels_in_the_same_tiles() -> None:
    conv = Convolution(16, 768, (14, 14), 384).simplified()
    for make in (forward_group, gradient_group):
        floats, halves = make(conv, UNIT), make(conv, replace(UNIT, cell_bytes=2))
        assert floats is not None
        assert halves is not None
        assert floats.blocks == 2 * halves.blocks
        assert halves.tiling == floats.tiling
