"""Runs the kernels on tensors: forward, input gradient and weight gradient of a planned layer."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from autosparse.kernels.compressed import Compressed
from autosparse.kernels.library import kernels
from autosparse.kernels.pages import WORD_BYTES, Words
from autosparse.kernels.plans import row_parts
from autosparse.kernels.scratch import TILES, TRANSPOSED, scratch


def forward(compressed: Compressed, source: Tensor, bias: Tensor | None, target: Tensor) -> None:
    """target = source * weight + bias; both channels_last in memory."""
    plan, using, threads = compressed.plan, kernels(), torch.get_num_threads()
    parts = row_parts(plan.forward_group, threads, using.lanes)
    native = byref(plan.forward.native)
    using.table.gather(
        native,
        source.data_ptr(),
        None if bias is None else bias.data_ptr(),
        compressed.row_start.data_ptr(),
        compressed.entries.data_ptr(),
        threads,
        parts,
        scratch(TILES, threads * using.table.gather_scratch(native, parts)).data_ptr(),
        target.data_ptr(),
    )


def input_gradient(compressed: Compressed, grad: Tensor, target: Tensor) -> None:
    """target = the gradient of the input, one phase of the stride after the other."""
    plan, using, threads = compressed.plan, kernels(), torch.get_num_threads()
    group = plan.gradient_group
    if group is None or not group.covers_target:
        target.zero_()
    if group is None:
        return
    parts = row_parts(group, threads, using.lanes)
    start, entries = compressed.transposed(threads)
    for phase, prepared in enumerate(plan.gradient):
        native = byref(prepared.native)
        using.table.gather(
            native,
            grad.data_ptr(),
            None,
            start.data_ptr() + phase * plan.transposed_rows_per_phase * WORD_BYTES,
            entries.data_ptr(),
            threads,
            parts,
            scratch(TILES, threads * using.table.gather_scratch(native, parts)).data_ptr(),
            target.data_ptr(),
        )


def weight_gradient(pattern: Compressed, source: Tensor, grad: Tensor, target: Tensor, adds: bool = False) -> None:
    """target = the gradient of the weight at the positions of a pattern, zero elsewhere; or it is added to the target."""
    if pattern.nonzeros == 0:
        if not adds:
            target.zero_()
        return
    plan, using, threads = pattern.plan, kernels(), torch.get_num_threads()
    parts = row_parts(plan.forward_group, threads, using.lanes)
    slices = max(1, min(plan.forward_group.tiles, threads))
    sums = scratch(TRANSPOSED, slices * pattern.nonzeros)  # the transposed weight is not needed meanwhile
    native = byref(plan.forward.native)
    using.table.weight_gradient(
        native,
        source.data_ptr(),
        grad.data_ptr(),
        pattern.row_start.data_ptr(),
        pattern.entries.data_ptr(),
        threads,
        slices,
        parts,
        scratch(TILES, threads * using.table.weight_gradient_scratch(native, parts)).data_ptr(),
        sums.data_ptr(),
    )
    scatter(pattern, sums, slices, target, adds)


def scatter(pattern: Compressed, sums: Words, slices: int, target: Tensor, adds: bool = False) -> None:
    """target = the slices' sums at the positions of a pattern, zero elsewhere; or they are added to what it holds."""
    kernels().table.scatter(
        byref(pattern.plan.layout),
        pattern.plan.slots.data_ptr(),
        pattern.row_start.data_ptr(),
        pattern.entries.data_ptr(),
        sums.data_ptr(),
        slices,
        int(adds),
        torch.get_num_threads(),
        target.data_ptr(),
    )
