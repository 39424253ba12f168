"""What a pass reads at a pixel and what it does with its result there: native/training/pixels.h.

The result of a batch norm is kept as the `raw` tensor before it, with one scale and offset per channel (`folded`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.kernels import training_table as structs
from autosparse.kernels.library import kernels
from autosparse.kernels.memory import CHANNEL_SUMS, DOUBLE_WORDS, is_images_last, scratch

# interface.h: SourceKind and SinkKind
PLAIN, NORMALISED, ACTIVATED, GRADIENT, JOINED, JOINED_ACTIVATED = range(6)
STORE, STATISTICS, TO_NORMALISED, TO_ACTIVATED, TO_JOINED, TO_JOINED_ACTIVATED = range(6)
# Parts of a pass whose sums are kept apart, then added in order: enough to keep a few threads evenly busy.
MOST_SLICES = 64
# Results above this size have left the caches before they are read again. With images last they are written in the order
# of memory, and need no cache to collect them.
STREAMED_BYTES, STREAMED_IMAGES_BYTES = 16 * 2**20, 4 * 2**20
VECTOR_BYTES = 64
FLOAT_BYTES = 4
NO_SUMS = torch.empty(0, dtype=torch.float64)


@dataclass(slots=True, eq=False)
class Source:
    """The input of a layer: a tensor, or relu(scale * raw + offset) of one in channels_last, with or without the ReLU.

    `folded`: scale, offset and mean of raw, for all channels.
    """

    raw: Tensor
    folded: Tensor | None = None
    relu: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return self.raw.dtype

    def native(self) -> structs.Source:
        if self.folded is None:
            return structs.Source(PLAIN, self.raw.data_ptr())
        scale, offset, _ = rows(self.folded)
        return structs.Source(ACTIVATED if self.relu else NORMALISED, self.raw.data_ptr(), scale, offset)

    def joined(self, other: Source) -> structs.Source:
        """Their sum, and its ReLU if this source has one."""
        assert self.folded is not None, "the first of two joined sources is normalised"
        scale, offset, _ = rows(self.folded)
        other_scale, other_offset, _ = rows(other.folded)
        kind, tensors = JOINED_ACTIVATED if self.relu else JOINED, (self.raw.data_ptr(), other.raw.data_ptr())
        return structs.Source(kind, tensors[0], scale, offset, tensors[1], other_scale, other_offset)


@dataclass(slots=True, eq=False)
class GradientSource:
    """The gradient of a raw value: coefficients[0] * the normalised value's + coefficients[1] * raw + coefficients[2]."""

    normalised: Tensor
    raw: Tensor
    coefficients: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.raw.dtype

    def native(self) -> structs.Source:
        scale, raw_scale, offset = rows(self.coefficients)
        return structs.Source(GRADIENT, self.normalised.data_ptr(), scale, offset, self.raw.data_ptr(), raw_scale)


@dataclass(slots=True, eq=False)
class Sink:
    """What becomes of a pass's result, or of the gradient of a layer's input.

    STATISTICS subtracts `shift` before it sums. A gradient is summed alone and times the raw values of `source` and
    `other`, less their means; `added` is added to it first, and it is zero where `result` is not positive.
    """

    kind: int
    source: Source | None = None
    other: Source | None = None
    added: Tensor | None = None
    result: Tensor | None = None
    shift: Tensor | None = None
    may_stream: bool = True  # a large target is written past the caches

    @staticmethod
    def of_gradient(source: Source) -> Sink:
        """Where the gradient of a source goes."""
        if source.folded is None:
            return Sink(STORE)
        return Sink(TO_ACTIVATED if source.relu else TO_NORMALISED, source)

    def native(self, target: Tensor | None, channels: int, slices: int) -> tuple[structs.Sink, Tensor]:
        """The sink for the kernels, and the sums that they add to: three rows of `channels`, or none for STORE."""
        streams = target is not None and self.may_stream and streams_past_caches(target)
        if self.kind == STORE:
            return structs.Sink(STORE, address(target), streams), NO_SUMS
        source, other = self.source, self.other
        scale, offset, mean = (None, None, address(self.shift)) if source is None else rows(source.folded)
        lanes, sums = kernels().lanes, torch.zeros(structs.SUMS, channels, dtype=torch.float64)
        slice_sums = scratch(CHANNEL_SUMS, DOUBLE_WORDS * slices * structs.SUMS * (-channels // lanes * -lanes))
        sink = structs.Sink(
            self.kind,
            address(target),
            streams,
            mean,
            None if source is None else source.raw.data_ptr(),
            scale,
            offset,
            address(self.added),
            address(self.result),
            None if other is None else other.raw.data_ptr(),
            None if other is None else rows(other.folded)[2],
            slice_sums.data_ptr(),
            sums.data_ptr(),
        )
        return sink, sums


PLAIN_STORE = Sink(STORE, may_stream=False)


def slices_for(parts: int) -> int:
    """How many groups the parts of a pass are dealt out in where each group has sums of its own."""
    return max(1, min(parts, MOST_SLICES))


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def rows(folded: Tensor | None) -> tuple[int | None, int | None, int | None]:
    """The addresses of three rows of float32, one number per channel."""
    if folded is None:
        return None, None, None
    first, pitch = folded.data_ptr(), folded.shape[1] * FLOAT_BYTES
    return first, first + pitch, first + 2 * pitch


def streams_past_caches(target: Tensor) -> bool:
    """Whether to write a tensor past the caches: it is larger than they are, and its vectors are aligned."""
    size, is_aligned = target.numel() * target.element_size(), target.data_ptr() % VECTOR_BYTES == 0
    if is_images_last(target):
        return is_aligned and size > STREAMED_IMAGES_BYTES
    return is_aligned and size > STREAMED_BYTES and target.shape[1] % kernels().lanes == 0
