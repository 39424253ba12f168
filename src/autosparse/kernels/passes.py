"""Runs the kernels on tensors: forward, input gradient and weight gradient of a layer with a compressed weight.

Every pass reads a source and ends in a sink. Those that make sums return them; see `Sink`.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor

from autosparse.kernels.compressed import Compressed
from autosparse.kernels.geometry import PassGroup
from autosparse.kernels.layout import PreparedPass, row_parts
from autosparse.kernels.library import kernels
from autosparse.kernels.memory import TILES, TRANSPOSED, WEIGHT_SUMS, WORD_BYTES, Words, scratch
from autosparse.kernels.pixels import NO_SUMS, STORE, GradientSource, Sink, Source, address, slices_for

# Channels whose packed gradient still fits into the second cache, for both gradients in one pass.
MOST_JOINT_CHANNELS = 1024


def forward(compressed: Compressed, source: Source, bias: Tensor | None, sink: Sink, target: Tensor) -> Tensor:
    """target = source * weight + bias; all tensors lie in the order of the layout."""
    layout, rows = compressed.layout, (compressed.row_start, compressed.entries)
    return _gather(layout.forward_group, (layout.forward,), source, bias, rows, 0, sink, target)


def input_gradient(compressed: Compressed, grad: Source | GradientSource, sink: Sink, target: Tensor) -> Tensor:
    """target = the gradient of the layer's input; sinks that make sums need `reaches_all`."""
    layout, group = compressed.layout, compressed.layout.gradient_group
    if not reaches_all(compressed):
        assert sink.kind == STORE, "sums over pixels that no pass writes"
        target.zero_()
    if group is None:
        return NO_SUMS
    rows = compressed.transposed(torch.get_num_threads())
    return _gather(group, layout.gradient, grad, None, rows, layout.transposed_rows_per_phase, sink, target)


def reaches_all(compressed: Compressed) -> bool:
    """Whether the passes of the input gradient write every pixel."""
    group = compressed.layout.gradient_group
    return group is not None and group.covers_target


def _gather(
    group: PassGroup,
    passes: Sequence[PreparedPass],
    source: Source | GradientSource,
    bias: Tensor | None,
    rows: tuple[Words, Words],
    rows_per_pass: int,
    sink: Sink,
    target: Tensor,
) -> Tensor:
    """`rows`: where compressed rows start, and their entries; each pass has its own."""
    using, threads = kernels(), torch.get_num_threads()
    table, parts = using.table_of(source.dtype), row_parts(group, threads, using.lanes)
    slices = group.tiles if sink.kind == STORE else slices_for(group.tiles)
    native_source = source.native()
    native_sink, sums = sink.native(target, group.target.channels, slices)
    start, entries = rows[0].data_ptr(), rows[1].data_ptr()
    for index, prepared in enumerate(passes):
        native = byref(prepared.native)
        table.gather(
            native,
            byref(native_source),
            address(bias),
            start + index * rows_per_pass * WORD_BYTES,
            entries,
            threads,
            slices,
            parts,
            scratch(TILES, threads * table.gather_scratch(native, parts)).data_ptr(),
            byref(native_sink),
        )
    return sums


def weight_gradient(
    pattern: Compressed, source: Source, grad: Source | GradientSource, target: Tensor, adds: bool = False
) -> None:
    """target = the gradient of the weight at the positions of a pattern, zero elsewhere; or it is added to the target."""
    if pattern.nonzeros == 0:
        if not adds:
            target.zero_()
        return
    layout, using, threads = pattern.layout, kernels(), torch.get_num_threads()
    parts = row_parts(layout.forward_group, threads, using.lanes)
    slices = _weight_slices(pattern, threads)
    sums = scratch(TRANSPOSED, slices * pattern.nonzeros)  # the transposed weight is not needed meanwhile
    native = byref(layout.forward.native)
    table = using.table_of(source.dtype)
    table.weight_gradient(
        native,
        byref(source.native()),
        byref(grad.native()),
        pattern.row_start.data_ptr(),
        pattern.entries.data_ptr(),
        threads,
        slices,
        parts,
        scratch(TILES, threads * table.weight_gradient_scratch(native, parts)).data_ptr(),
        sums.data_ptr(),
    )
    _scatter(pattern, sums, slices, target, adds)


def _weight_slices(pattern: Compressed, threads: int) -> int:
    return max(1, min(pattern.layout.forward_group.tiles, threads))


def joint_gradients_fit(compressed: Compressed) -> bool:
    """Whether both gradients can be made in one pass: no window, tiles for every thread, a gradient that stays in cache."""
    layout, threads = compressed.layout, torch.get_num_threads()
    group, conv = layout.gradient_group, layout.conv
    if group is None or compressed.nonzeros == 0 or not conv.is_pointwise:
        return False
    if not conv.images_last and (not group.tiling.interleaved or conv.out_channels > MOST_JOINT_CHANNELS):
        return False
    same_tiles = group.tiling == layout.forward_group.tiling
    return same_tiles and row_parts(group, threads, kernels().lanes) == 1


def joint_gradients(
    compressed: Compressed, source: Source, grad: GradientSource, sink: Sink, target: Tensor, weight_target: Tensor
) -> Tensor:
    """Both gradients of a convolution without a window, as `input_gradient` and `weight_gradient` at its non-zeros."""
    layout, using, threads = compressed.layout, kernels(), torch.get_num_threads()
    slices = _weight_slices(compressed, threads)
    start, entries = compressed.transposed(threads)
    weight_sums = scratch(WEIGHT_SUMS, slices * compressed.nonzeros)
    native_sink, sums = sink.native(target, layout.conv.in_channels, slices)
    forward_pass, backward_pass = byref(layout.forward.native), byref(layout.gradient[0].native)
    table = using.table_of(source.dtype)
    table.joint_gradient(
        forward_pass,
        backward_pass,
        byref(source.native()),
        byref(grad.native()),
        compressed.row_start.data_ptr(),
        compressed.entries.data_ptr(),
        start.data_ptr(),
        entries.data_ptr(),
        threads,
        slices,
        scratch(TILES, threads * table.joint_gradient_scratch(forward_pass, backward_pass)).data_ptr(),
        byref(native_sink),
        weight_sums.data_ptr(),
    )
    _scatter(compressed, weight_sums, slices, weight_target)
    return sums


def _scatter(pattern: Compressed, sums: Words, slices: int, target: Tensor, adds: bool = False) -> None:
    """target = the slices' sums at the positions of a pattern, zero elsewhere; or they are added to what it holds."""
    kernels().table.scatter(
        byref(pattern.layout.weight),
        pattern.layout.slots.data_ptr(),
        pattern.row_start.data_ptr(),
        pattern.entries.data_ptr(),
        sums.data_ptr(),
        slices,
        int(adds),
        torch.get_num_threads(),
        target.data_ptr(),
    )
