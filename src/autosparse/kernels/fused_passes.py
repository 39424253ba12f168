"""Runs the fused kernels on tensors: what is read is made while reading, what is summed is summed while writing.

A value that a batch norm has made is kept as it was before (`raw`), with one scale and offset for every channel.
"""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import passes
from autosparse.kernels.compressed import Compressed
from autosparse.kernels.library import SUMS, Sink, Source, kernels
from autosparse.kernels.pages import WORD_BYTES
from autosparse.kernels.plans import row_parts
from autosparse.kernels.scratch import CHANNEL_SUMS, DOUBLE_WORDS, TILES, TRANSPOSED, WEIGHT_SUMS, scratch

# interface.h: SourceKind and SinkKind
PLAIN, NORMALISED, ACTIVATED, GRADIENT, JOINED, JOINED_ACTIVATED = range(6)
STORE, STATISTICS, TO_NORMALISED, TO_ACTIVATED, TO_JOINED, TO_JOINED_ACTIVATED = range(6)
# Parts of a pass whose sums are kept apart, then added in order: enough to keep a few threads evenly busy.
SLICES = 64
# Channels whose packed gradient still fits into the second cache, for both gradients in one pass.
MOST_JOINT_CHANNELS = 1024
# Results above this size have left the caches before they are read again.
STREAMED_BYTES = 16 * 2**20
VECTOR_BYTES = 64
FLOAT_BYTES = 4


def rows(folded: Tensor | None) -> tuple[int | None, int | None, int | None]:
    """The addresses of three rows of float32, one number a channel."""
    if folded is None:
        return None, None, None
    first, pitch = folded.data_ptr(), folded.shape[1] * FLOAT_BYTES
    return first, first + pitch, first + 2 * pitch


@dataclass(frozen=True)
class Value:
    """The input of a layer: a tensor in channels_last, or relu(scale * raw + offset) of one, with or without the ReLU.

    `folded`: scale, offset and mean of raw, for all channels.
    """

    raw: Tensor
    folded: Tensor | None = None
    relu: bool = False

    def source(self) -> Source:
        if self.folded is None:
            return Source(PLAIN, self.raw.data_ptr())
        scale, offset, _ = rows(self.folded)
        return Source(ACTIVATED if self.relu else NORMALISED, self.raw.data_ptr(), scale, offset)


@dataclass(frozen=True)
class Gradient:
    """The gradient of a raw value: coefficients[0] * the normalised value's + coefficients[1] * raw + coefficients[2]."""

    normalised: Tensor
    raw: Tensor
    coefficients: Tensor

    def source(self) -> Source:
        scale, raw_scale, offset = rows(self.coefficients)
        return Source(GRADIENT, self.normalised.data_ptr(), scale, offset, self.raw.data_ptr(), raw_scale)


@dataclass(frozen=True)
class Ending:
    """What becomes of a pass's result, or of the gradient of a layer's input.

    For STATISTICS `shift` is taken off before the sums are made. A gradient is summed alone and times the raw values of
    `value` and `other`, less their means; `added` is added to it first, and it is zero where `result` is not positive.
    """

    kind: int
    value: Value | None = None
    other: Value | None = None
    added: Tensor | None = None
    result: Tensor | None = None
    shift: Tensor | None = None

    @staticmethod
    def at(value: Value) -> Ending:
        if value.folded is None:
            return Ending(STORE)
        return Ending(TO_ACTIVATED if value.relu else TO_NORMALISED, value)


class Sums:
    """Memory for the sums of a pass with `channels` results, zero at first."""

    def __init__(self, channels: int, slices: int) -> None:
        lanes = kernels().lanes
        self.total = torch.zeros(SUMS, channels, dtype=torch.float64)
        self._slices = scratch(CHANNEL_SUMS, DOUBLE_WORDS * slices * SUMS * (-channels // lanes * -lanes))

    def sink(self, ending: Ending, target: Tensor | None) -> Sink:
        value, other = ending.value, ending.other
        scale, offset, mean = (None, None, address(ending.shift)) if value is None else rows(value.folded)
        return Sink(
            ending.kind,
            address(target),
            target is not None and streams(target),
            mean,
            None if value is None else value.raw.data_ptr(),
            scale,
            offset,
            address(ending.added),
            address(ending.result),
            None if other is None else other.raw.data_ptr(),
            None if other is None else rows(other.folded)[2],
            self._slices.data_ptr(),
            self.total.data_ptr(),
        )


def streams(target: Tensor) -> bool:
    """Whether to write a tensor past the caches: it is larger than they are, and a pixel's vectors are aligned."""
    large = target.numel() * target.element_size() > STREAMED_BYTES
    return large and target.shape[1] % kernels().lanes == 0 and target.data_ptr() % VECTOR_BYTES == 0


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def slices_for(tiles: int) -> int:
    return max(1, min(tiles, SLICES))


def forward(compressed: Compressed, value: Value, bias: Tensor | None, shift: Tensor, target: Tensor) -> Tensor:
    """target = the layer's result; gives the sums of result - shift and of its square."""
    plan, using, threads = compressed.plan, kernels(), torch.get_num_threads()
    parts, slices = row_parts(plan.forward_group, threads, using.lanes), slices_for(plan.forward_group.tiles)
    native = byref(plan.forward.native)
    sums = Sums(plan.conv.out_channels, slices)
    using.table.fused_gather(
        native,
        byref(value.source()),
        address(bias),
        compressed.row_start.data_ptr(),
        compressed.entries.data_ptr(),
        threads,
        slices,
        parts,
        scratch(TILES, threads * using.table.gather_scratch(native, parts)).data_ptr(),
        byref(sums.sink(Ending(STATISTICS, shift=shift), target)),
    )
    return sums.total


def reaches_all(compressed: Compressed) -> bool:
    """Whether the passes of the input gradient write every pixel: only then can they make sums."""
    group = compressed.plan.gradient_group
    return group is not None and group.covers_target


def input_gradient(compressed: Compressed, grad: Gradient, ending: Ending, target: Tensor) -> Tensor:
    """target = the gradient of the layer's input after the ending; gives its sums."""
    plan, using, threads = compressed.plan, kernels(), torch.get_num_threads()
    group = plan.gradient_group
    assert group is not None
    parts, slices = row_parts(group, threads, using.lanes), slices_for(group.tiles)
    start, entries = compressed.transposed(threads)
    sums = Sums(plan.conv.in_channels, slices)
    for phase, prepared in enumerate(plan.gradient):
        native = byref(prepared.native)
        using.table.fused_gather(
            native,
            byref(grad.source()),
            None,
            start.data_ptr() + phase * plan.transposed_rows_per_phase * WORD_BYTES,
            entries.data_ptr(),
            threads,
            slices,
            parts,
            scratch(TILES, threads * using.table.gather_scratch(native, parts)).data_ptr(),
            byref(sums.sink(ending, target)),
        )
    return sums.total


def weight_gradient(pattern: Compressed, value: Value, grad: Gradient, target: Tensor) -> None:
    """target = the gradient of the weight at the positions of a pattern, zero elsewhere."""
    if pattern.nonzeros == 0:
        target.zero_()
        return
    plan, using, threads = pattern.plan, kernels(), torch.get_num_threads()
    parts = row_parts(plan.forward_group, threads, using.lanes)
    slices = max(1, min(plan.forward_group.tiles, threads))
    sums = scratch(TRANSPOSED, slices * pattern.nonzeros)  # the transposed weight is not needed meanwhile
    native = byref(plan.forward.native)
    using.table.fused_weight_gradient(
        native,
        byref(value.source()),
        byref(grad.source()),
        pattern.row_start.data_ptr(),
        pattern.entries.data_ptr(),
        threads,
        slices,
        parts,
        scratch(TILES, threads * using.table.weight_gradient_scratch(native, parts)).data_ptr(),
        sums.data_ptr(),
    )
    passes.scatter(pattern, sums, slices, target)


def joint_gradients_fit(compressed: Compressed) -> bool:
    """Whether both gradients can be made in one pass: no window, tiles for every thread, a gradient that stays in cache."""
    plan, threads = compressed.plan, torch.get_num_threads()
    group, conv = plan.gradient_group, plan.conv
    if (
        group is None
        or compressed.nonzeros == 0
        or conv.kernel != (1, 1)
        or not group.tiling.interleaved
        or conv.out_channels > MOST_JOINT_CHANNELS
    ):
        return False
    same_tiles = group.tiling == plan.forward_group.tiling
    return same_tiles and row_parts(group, threads, kernels().lanes) == 1


def joint_gradients(
    compressed: Compressed, value: Value, grad: Gradient, ending: Ending, target: Tensor, weight_target: Tensor
) -> Tensor:
    """Both gradients of a convolution without a window, as `input_gradient` and `weight_gradient` at its non-zeros."""
    plan, using, threads = compressed.plan, kernels(), torch.get_num_threads()
    slices = max(1, min(plan.forward_group.tiles, threads))
    start, entries = compressed.transposed(threads)
    weight_sums = scratch(WEIGHT_SUMS, slices * compressed.nonzeros)
    sums = Sums(plan.conv.in_channels, slices)
    forward_pass, backward_pass = byref(plan.forward.native), byref(plan.gradient[0].native)
    using.table.joint_gradient(
        forward_pass,
        backward_pass,
        byref(value.source()),
        byref(grad.source()),
        compressed.row_start.data_ptr(),
        compressed.entries.data_ptr(),
        start.data_ptr(),
        entries.data_ptr(),
        threads,
        slices,
        scratch(TILES, threads * using.table.joint_gradient_scratch(forward_pass, backward_pass)).data_ptr(),
        byref(sums.sink(ending, target)),
        weight_sums.data_ptr(),
    )
    passes.scatter(compressed, weight_sums, slices, weight_target)
    return sums.total


def sweep(source: Source, like: Tensor, ending: Ending, target: Tensor | None) -> Tensor:
    """One pass over all pixels from a source to an ending; gives its sums."""
    channels = like.shape[1]
    pixels = like.numel() // channels
    slices = slices_for(pixels)
    sums = Sums(channels, slices)
    sink = sums.sink(ending, target)
    kernels().table.sweep(pixels, channels, byref(source), torch.get_num_threads(), slices, byref(sink))
    return sums.total


def statistics(raw: Tensor, shift: Tensor) -> Tensor:
    """The sums of raw - shift and of its square."""
    return sweep(Source(PLAIN, raw.data_ptr()), raw, Ending(STATISTICS, shift=shift), None)


def materialise(value: Value) -> Tensor:
    """The value as a tensor."""
    if value.folded is None:
        return value.raw
    target = torch.empty_like(value.raw)
    sweep(value.source(), value.raw, Ending(STORE), target)
    return target


def materialise_gradient(grad: Gradient) -> Tensor:
    target = torch.empty_like(grad.raw)
    sweep(grad.source(), grad.raw, Ending(STORE), target)
    return target


def join(first: Value, second: Value, relu: bool) -> Tensor:
    """The sum of a normalised value and another one, and its ReLU if wanted."""
    target = torch.empty_like(first.raw)
    source = first.source()
    source.kind = JOINED_ACTIVATED if relu else JOINED
    source.other = second.raw.data_ptr()
    source.other_scale, source.other_offset, _ = rows(second.folded)
    sweep(source, first.raw, Ending(STORE), target)
    return target


def finish(grad: Tensor, ending: Ending, target: Tensor) -> Tensor:
    """A gradient that is there as a tensor is taken through an ending; `target` may be the gradient itself."""
    return sweep(Source(PLAIN, grad.data_ptr()), grad, ending, target)


def fold_statistics(
    raw: Tensor, sums: Tensor, shift: Tensor, epsilon: float, gamma: Tensor | None, beta: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mean, biased variance and 1 / standard deviation in double; scale and offset of the batch norm with the mean."""
    channels = raw.shape[1]
    found, folded = torch.empty(3, channels, dtype=torch.float64), torch.empty(3, channels)

    def fold(sums: Tensor, shift: Tensor) -> bool:
        exact = kernels().table.fold_statistics(
            channels, raw.numel() // channels, sums.data_ptr(), shift.data_ptr(), epsilon,
            address(gamma), address(beta), found.data_ptr(), folded.data_ptr(),
        )  # fmt: skip
        return bool(exact)

    if not fold(sums, shift):  # the mean is too far from the shift: once more around the mean itself
        mean = found[0].float()
        fold(statistics(raw, mean), mean)
    return found, folded


def track_statistics(raw: Tensor, found: Tensor, factor: float, running_mean: Tensor, running_variance: Tensor) -> None:
    """Moves running statistics towards those of a raw value."""
    channels = raw.shape[1]
    kernels().table.track_statistics(
        channels, raw.numel() // channels, found.data_ptr(), factor, running_mean.data_ptr(), running_variance.data_ptr()
    )


def fold_gradients(raw: Tensor, grad_folded: Tensor, found: Tensor, gamma: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of gamma and beta, and the coefficients of the raw value's gradient."""
    channels = raw.shape[1]
    of_gamma, of_beta, coefficients = torch.empty(channels), torch.empty(channels), torch.empty(3, channels)
    kernels().table.fold_gradients(
        channels, raw.numel() // channels, grad_folded.data_ptr(), found.data_ptr(), address(gamma),
        of_gamma.data_ptr(), of_beta.data_ptr(), coefficients.data_ptr(),
    )  # fmt: skip
    return of_gamma, of_beta, coefficients
