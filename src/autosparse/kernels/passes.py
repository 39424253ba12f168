"""Runs the kernels on tensors: forward, input gradient and weight gradient of a planned layer."""

from __future__ import annotations

import threading
from ctypes import byref

import torch
from torch import Tensor

from autosparse.kernels.compressed import Compressed
from autosparse.kernels.library import kernels
from autosparse.kernels.plans import row_parts

# Grown and kept: allocating it anew for every call would cost a page fault for every few kilobytes.
_local = threading.local()


def scratch(floats: int) -> int:
    """The address of aligned scratch memory that belongs to the calling thread."""
    held: Tensor | None = getattr(_local, "buffer", None)
    if held is None or held.numel() < floats:
        held = torch.empty(floats)
        _local.buffer = held
    return held.data_ptr()  # torch aligns by 64 bytes, which is the widest vector


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
        scratch(threads * using.table.gather_scratch(native, parts)),
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
            start.data_ptr() + phase * plan.transposed_rows_per_phase * start.element_size(),
            entries.data_ptr(),
            threads,
            parts,
            scratch(threads * using.table.gather_scratch(native, parts)),
            target.data_ptr(),
        )


def weight_gradient(pattern: Compressed, source: Tensor, grad: Tensor, target: Tensor) -> None:
    """target = the gradient of the weight at the positions of a pattern, zero elsewhere."""
    if pattern.nonzeros == 0:
        target.zero_()
        return
    plan, using, threads = pattern.plan, kernels(), torch.get_num_threads()
    parts = row_parts(plan.forward_group, threads, using.lanes)
    slices = max(1, min(plan.forward_group.tiles, threads))
    sums = torch.empty(slices * pattern.nonzeros)
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
        scratch(threads * using.table.weight_gradient_scratch(native, parts)),
        sums.data_ptr(),
    )
    scatter(pattern, sums, slices, target)


def scatter(pattern: Compressed, sums: Tensor, slices: int, target: Tensor) -> None:
    """target = the slices' sums at the positions of a pattern, zero elsewhere."""
    kernels().table.scatter(
        byref(pattern.plan.layout),
        pattern.row_start.data_ptr(),
        pattern.columns.data_ptr(),
        sums.data_ptr(),
        slices,
        torch.get_num_threads(),
        target.data_ptr(),
    )
