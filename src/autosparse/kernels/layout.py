"""Layouts: what the native kernels need to know about one layer at one input size, prepared once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from autosparse.kernels.geometry import INT32_MAX, Convolution, Grid, PassGroup, forward_group, gradient_group
from autosparse.kernels.library import kernels
from autosparse.kernels.tiling import VectorUnit
from autosparse.kernels.training_table import Pass, TransposedLayout, WeightLayout

# Work items for every thread, so that a thread which started late does not keep the others waiting.
ITEMS_PER_THREAD = 4


@dataclass(frozen=True, eq=False)
class PreparedPass:
    """One pass in the form that the kernels take; the tensors keep its arrays alive."""

    native: Pass
    arrays: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """All passes of a layer, and the tables that lead from a dense weight to its compressed forms."""

    conv: Convolution
    forward: PreparedPass
    forward_group: PassGroup
    weight: WeightLayout
    column_offsets: Tensor
    slots: Tensor
    gradient: tuple[PreparedPass, ...]
    gradient_group: PassGroup | None
    transposed: TransposedLayout

    @property
    def compressed_rows(self) -> int:
        return self.forward_group.blocks * self.conv.out_channels

    @cached_property
    def transposed_rows_per_phase(self) -> int:
        assert self.gradient_group is not None
        return self.gradient_group.blocks * self.conv.in_channels


def row_parts(group: PassGroup, threads: int, lanes: int) -> int:
    """Into how many groups the output channels are split, so that every thread has work when there are few tiles."""
    if threads == 1 or group.tiles >= ITEMS_PER_THREAD * threads:
        return 1
    return max(1, min(math.ceil(ITEMS_PER_THREAD * threads / group.tiles), math.ceil(group.target.channels / lanes)))


def layout_for(conv: Convolution, channels_last: bool, dtype: torch.dtype = torch.float32) -> Layout:
    """The layout of a layer whose weight has this memory order, for the kernels in use and activations of this type."""
    return _layout(conv, channels_last and conv.taps > 1, kernels().unit(dtype))


@lru_cache(maxsize=1024)
def _layout(conv: Convolution, channels_last: bool, unit: VectorUnit) -> Layout:
    if conv.in_channels * conv.taps > INT32_MAX:
        raise ValueError(
            f"a row of the weight has {conv.in_channels * conv.taps} columns; the sparse kernels count to {INT32_MAX}"
        )
    forward = forward_group(conv, unit)
    gradient = gradient_group(conv, unit)
    weight = WeightLayout(conv.out_channels, conv.in_channels, conv.taps, forward.block_channels, int(channels_last))
    offsets = _forward_columns(conv, forward)
    rows = _transposed_phases(conv, gradient) * gradient.blocks * conv.in_channels if gradient else 0
    return Layout(
        conv,
        _prepare(conv, forward, forward.grids[0]),
        forward,
        weight,
        _memory_order(offsets, channels_last),
        _slots(conv, forward, gradient, offsets, channels_last),
        tuple(_prepare(conv, gradient, grid) for grid in gradient.grids) if gradient else (),
        gradient,
        TransposedLayout(
            rows,
            conv.in_channels,
            gradient.block_channels if gradient else 1,
            gradient.window.channel_stride if gradient else 0,
        ),
    )


def _prepare(conv: Convolution, group: PassGroup, grid: Grid) -> PreparedPass:
    used = tuple(torch.tensor(flags, dtype=torch.uint8) for flags in group.used(grid))
    tiling, window = group.tiling, group.window
    native = Pass(
        group.images, int(conv.images_last),
        *group.source.size, group.source.channels, *group.target.size, group.target.channels,
        *grid.size, *grid.out_first, *grid.out_step, *grid.in_first, *grid.in_step,
        *tiling.patch, *tiling.patches, tiling.site_step, tiling.pixel_step, *tiling.tile,
        *window.size, window.slots_per_row, group.block_channels, used[0].data_ptr(), used[1].data_ptr(),
    )  # fmt: skip
    return PreparedPass(native, used)


def _forward_columns(conv: Convolution, group: PassGroup) -> Tensor:
    """[channels, taps]: where the input of a column lies in a packed tile of its block."""
    taps = torch.tensor([group.window.offset(tap.row, tap.col) for tap in group.grids[0].taps])
    channels = torch.arange(conv.in_channels) % group.block_channels * group.window.channel_stride
    return (channels[:, None] + taps).to(torch.int32)


def _transposed_phases(conv: Convolution, group: PassGroup) -> int:
    """Phases of the input gradient, and one more for taps that no input pixel reaches if there are such."""
    return len(group.grids) + int(sum(len(grid.taps) for grid in group.grids) < conv.taps)


def _slots(conv: Convolution, forward: PassGroup, gradient: PassGroup | None, offsets: Tensor, channels_last: bool) -> Tensor:
    """interface.h: Slot. [vectors of a packed tile, 3]; the rows of vectors that no weight reads are zero."""
    channels, taps = torch.arange(forward.block_channels)[:, None], torch.arange(conv.taps)
    rows, tap_offsets = _transposed_taps(conv, gradient)
    slots = torch.zeros(forward.block_channels * forward.window.channel_stride // forward.window.lanes, 3, dtype=torch.int32)
    read = offsets[: forward.block_channels].long() // forward.window.lanes
    slots[read, 0] = (taps * conv.in_channels + channels if channels_last else channels * conv.taps + taps).to(torch.int32)
    slots[read, 1] = (rows + channels).to(torch.int32)
    slots[read, 2] = tap_offsets.to(torch.int32)
    return slots


def _transposed_taps(conv: Convolution, group: PassGroup | None) -> tuple[Tensor, Tensor]:
    """For each tap, the transposed row of channel 0 and the tap's offset in a packed tile of the input gradient."""
    rows, offsets = torch.zeros(conv.taps, dtype=torch.int64), torch.zeros(conv.taps, dtype=torch.int64)
    if group is None:
        return rows, offsets
    per_phase = group.blocks * conv.in_channels
    rows[:] = len(group.grids) * per_phase  # taps that no input pixel reaches go into rows that no pass reads
    for phase, grid in enumerate(group.grids):
        for tap in grid.taps:
            rows[tap.index] = phase * per_phase
            offsets[tap.index] = group.window.offset(tap.row, tap.col)
    return rows, offsets


def _memory_order(columns: Tensor, channels_last: bool) -> Tensor:
    """By position within a dense row: [channels][taps] or [taps][channels]."""
    return columns.transpose(0, 1).contiguous() if channels_last else columns.contiguous()
