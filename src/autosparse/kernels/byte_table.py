"""The int8 and bfloat16 kernels as Python sees them: native/inference/bytes/interface.h, and weights packed for them."""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, Structure, c_float, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autosparse.kernels.inference_table import Call, Planes
from autosparse.kernels.native_fields import addresses, fields, integers

CHUNK_PIXELS = 32
BYTES_BEHIND = 256
DOT_COLUMNS = 64
BLOCKS = (1, 2, 4)
LARGEST_ACTIVATION = 255
# sums times their scale stay below what a float becomes as an integer
LARGEST_RESULT = 2.0**30


class QuadRows(Structure):
    """interface.h: QuadRows."""

    _fields_ = [*integers("rows", "block"), *addresses("starts", "quads", "scale", "bias")]


class ByteOp(Structure):
    """interface.h: ByteOp."""

    _fields_ = [
        ("kind", c_int64),
        *fields(POINTER(Planes), "input", "other", "output"),
        ("outside", c_int64),
        ("weights", QuadRows),
        *fields(c_float, "other_scale", "low", "high"),
        *integers("first_channel", "tile_vectors"),
        ("tap_offsets", c_void_p),
        *integers("taps", "step", "phase_planes"),
        ("phases", c_void_p),
    ]


class ByteLinear(Structure):
    """interface.h: ByteLinear."""

    _fields_ = [
        ("columns", c_int64),
        *fields(c_float, "inverse_scale", "zero_point", "low", "high"),
        ("weights", QuadRows),
        ("tile_chunks", c_int64),
        ("dense", c_void_p),
    ]


class ByteTable(Structure):
    """interface.h: ByteTable."""

    _fields_ = [
        ("max_chunks", c_int64 * 3),
        ("run", CFUNCTYPE(None, POINTER(ByteOp), c_int64, POINTER(Call))),
        ("linear_scratch", CFUNCTYPE(c_int64, POINTER(ByteLinear), c_int64)),
        ("linear_quads", CFUNCTYPE(None, POINTER(ByteLinear), c_int64, c_int64, *[c_void_p] * 4)),
        ("linear_dots", CFUNCTYPE(None, POINTER(ByteLinear), c_int64, c_int64, *[c_void_p] * 4)),
    ]


@dataclass(frozen=True, eq=False)
class ByteKernels:
    """The eight-bit kernels of one instruction set, or with two bytes per number those for bfloat16."""

    instruction_set: str
    table: Any
    number_bytes: int = 1

    def max_chunks(self, block: int) -> int:
        return int(self.table.max_chunks[BLOCKS.index(block)])


def pack_quads(weight: Tensor, offsets: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """A (rows, columns) weight whose columns lie at these (rows or 1, columns) offsets: first quads of blocks, and quads.

    Of an int8 weight four non-zeros go together, of a bfloat16 weight two. A column counts for a block if any of its rows is
    not zero there. The last quad of a block is filled up with weights of zero at an offset that it has already.
    """
    rows, columns = weight.shape
    together = 4 // weight.element_size()
    blocks = -(-rows // block)
    padded = weight.new_zeros(blocks * block, columns)
    padded[:rows] = weight
    by_block = padded.view(blocks, block, columns)
    mask = (by_block != 0).any(1)
    counts = mask.sum(1)
    quads = -(-counts // together)
    starts = torch.zeros(blocks + 1, dtype=torch.int64)
    starts[1:] = quads.cumsum(0)
    places, used = mask.nonzero(as_tuple=True)
    # a column's place: its block's first quad, and how many of the block came before it
    first = counts.cumsum(0) - counts
    place = torch.arange(len(places)) - first[places]
    # every other block backwards: it begins with the inputs that the one before has left in the cache
    slot = starts[places] * together + torch.where(places % 2 == 0, place, quads[places] * together - 1 - place)
    total = int(starts[-1]) * together
    where = offsets.to(torch.int64).expand(rows, columns)[::block][places, used]
    slots = torch.zeros(total, dtype=torch.int64)
    values = weight.new_zeros(total, block)
    if total:
        last = (counts.cumsum(0) - 1).clamp_min(0)
        slots[:] = where[last].repeat_interleave(quads * together)
        slots[slot] = where
        values[slot] = by_block.transpose(1, 2)[places, used]
    packed = torch.empty(total // together, together + block, dtype=torch.int32)
    packed[:, :together] = slots.view(-1, together).to(torch.int32)
    by_row = values.view(-1, together, block).transpose(1, 2).flatten().clone()
    packed[:, together:] = by_row.view(torch.int32).view(-1, block)
    return starts.to(torch.int32), packed


def quad_rows(weight: Tensor, offsets: Tensor, scale: Tensor, bias: Tensor, block: int) -> tuple[QuadRows, list[Tensor]]:
    """Quads for the kernels, and the memory that they point to.

    `scale` and `bias` are by row, and a scale that would leave the integers is made smaller.
    """
    starts, quads = pack_quads(weight, offsets, block)
    limited, shift = scale.to(torch.float32).contiguous(), bias.to(torch.float32).contiguous()
    if weight.dtype == torch.int8:
        most = weight.to(torch.float64).abs().sum(1) * LARGEST_ACTIVATION
        limited = torch.minimum(scale.to(torch.float64), LARGEST_RESULT / most.clamp_min(1.0)).to(torch.float32).contiguous()
        shift = bias.to(torch.float64).clamp(-LARGEST_RESULT, LARGEST_RESULT).to(torch.float32).contiguous()
    memory = [starts, quads, limited, shift]
    return QuadRows(len(weight), block, *(tensor.data_ptr() for tensor in memory)), memory


def pack_dots(weight: Tensor) -> Tensor:
    """An int8 (rows, columns) weight with zeros up to whole vectors."""
    rows, columns = weight.shape
    padded = torch.zeros(rows, -(-columns // DOT_COLUMNS) * DOT_COLUMNS, dtype=torch.int8)
    padded[:, :columns] = weight
    return padded
