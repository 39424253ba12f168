"""The inference kernels as Python sees them: the structs of native/inference/interface.h, and weights packed for them."""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, Structure, c_float, c_int64, c_void_p

import torch
from torch import Tensor

from autosparse.kernels.native_fields import addresses, fields, integers

BITMASK_COLUMNS = 16
INDEXED_BLOCK = 8

# interface.h: OpKind and InputKind
LOAD, STORE, SPLIT, SPARSE, DENSE, DEPTHWISE, MAX_POOL, MEAN_POOL, ADD, COPY, MEAN = range(11)
DIRECT, DEPTHWISE_TILE, ALIGNED_TILE = range(3)
# DecoderOpKind
NORMALISE, LINEAR, ATTEND = range(3)

INFINITY = float("inf")


class Planes(Structure):
    """interface.h: Planes."""

    _fields_ = [
        ("first", c_void_p),
        *integers("channels", "plane_pixels", "lead_pixels", "images", "rows", "cols", "image_pixels", "row_pixels", "vectors"),
        ("valid", c_void_p),
        ("zero_point", c_int64),
        ("scale", c_float),
    ]


class Finish(Structure):
    """interface.h: Finish."""

    _fields_ = [("bias", c_void_p), ("low", c_float), ("high", c_float)]


class Op(Structure):
    """interface.h: Op."""

    _fields_ = [
        ("kind", c_int64),
        *fields(POINTER(Planes), "input", "other", "output"),
        ("outside", c_int64),
        ("finish", Finish),
        *integers("first_channel", "rows", "source", "tile_vectors"),
        *addresses("row_start", "terms", "blocks", "offsets"),
        ("columns", c_int64),
        ("shifts", c_void_p),
        *integers("shift_count", "shift_floats"),
        *addresses("tap_weights", "tap_offsets"),
        ("taps", c_int64),
        ("tap_finish", Finish),
        ("scale", c_float),
        *integers("step", "phase_planes"),
        ("phases", c_void_p),
    ]


class Call(Structure):
    """interface.h: Call."""

    _fields_ = [
        *integers("images", "images_per_group", "threads", "together", "arena_floats"),
        ("scratch", c_void_p),
        ("scratch_floats", c_int64),
        *fields(POINTER(c_void_p), "inputs", "outputs"),
        ("seconds", c_void_p),
    ]


class BitmaskLinear(Structure):
    """interface.h: BitmaskLinear."""

    _fields_ = [*integers("rows", "words"), *addresses("row_start", "bits", "values"), ("finish", Finish)]


class DenseLinear(Structure):
    """interface.h: DenseLinear."""

    _fields_ = [*integers("rows", "columns"), ("values", c_void_p), ("finish", Finish)]


class IndexedLinear(Structure):
    """interface.h: IndexedLinear."""

    _fields_ = [("rows", c_int64), *addresses("row_start", "columns", "values"), ("finish", Finish)]


class TermLinear(Structure):
    """interface.h: TermLinear."""

    _fields_ = [*integers("rows", "columns", "tile_vectors"), *addresses("row_start", "terms"), ("finish", Finish)]


class ScreenedLinear(Structure):
    """interface.h: ScreenedLinear."""

    _fields_ = [("exact", DenseLinear), ("columns", c_int64), *addresses("coarse", "scales", "errors")]


class DecoderOp(Structure):
    """interface.h: DecoderOp."""

    _fields_ = [
        *integers("kind", "wait"),
        *addresses("input", "other", "output"),
        ("output_step", c_int64),
        ("bitmask", POINTER(BitmaskLinear)),
        ("indexed", POINTER(IndexedLinear)),
        ("dense", POINTER(DenseLinear)),
        ("terms", POINTER(TermLinear)),
        *addresses("scale", "shift"),
        ("columns", c_int64),
        ("epsilon", c_float),
        *addresses("keys", "values", "seen"),
        *integers("seen_stride", "heads", "width", "positions"),
    ]


class DecoderCall(Structure):
    """interface.h: DecoderCall."""

    _fields_ = [*integers("batch", "position", "threads"), ("scratch", c_void_p), *integers("scratch_floats")]


class InferenceTable(Structure):
    """interface.h: InferenceTable."""

    _fields_ = [
        *integers("lanes", "max_vectors", "dense_rows"),
        ("run", CFUNCTYPE(None, POINTER(Op), c_int64, POINTER(Call))),
        ("linear_one", CFUNCTYPE(None, POINTER(BitmaskLinear), c_int64, *[c_void_p] * 3)),
        ("linear_dense", CFUNCTYPE(None, POINTER(DenseLinear), c_int64, c_int64, *[c_void_p] * 3)),
        ("linear_indexed", CFUNCTYPE(None, POINTER(IndexedLinear), c_int64, *[c_void_p] * 3)),
        ("linear_scratch", CFUNCTYPE(c_int64, POINTER(TermLinear))),
        ("linear_many", CFUNCTYPE(None, POINTER(TermLinear), c_int64, c_int64, *[c_void_p] * 4)),
        ("largest_rows", CFUNCTYPE(None, POINTER(ScreenedLinear), c_int64, c_int64, *[c_void_p] * 3)),
        ("decode", CFUNCTYPE(None, POINTER(DecoderOp), c_int64, POINTER(DecoderCall))),
    ]


def pack_terms(weight: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The non-zeros of a (rows, columns) weight: where rows start, and (offset, value) pairs as int32 and float32 bits."""
    mask = weight != 0
    row_start = torch.zeros(weight.shape[0] + 1, dtype=torch.int32)
    row_start[1:] = mask.sum(1).cumsum(0)
    columns = mask.nonzero()[:, 1]
    terms = torch.empty(columns.numel(), 2, dtype=torch.int32)
    terms[:, 0] = offsets.to(torch.int32)[columns]
    terms[:, 1] = weight[mask].float().view(torch.int32)
    return row_start, terms


def pack_indexed(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A (rows, columns) weight with at most 65,536 columns as first blocks of rows, columns (16 bits) and values."""
    mask = weight != 0
    counts = mask.sum(1)
    blocks = -(-counts // INDEXED_BLOCK)
    row_start = torch.zeros(weight.shape[0] + 1, dtype=torch.int64)
    row_start[1:] = blocks.cumsum(0)
    rows, used_columns = mask.nonzero(as_tuple=True)
    # a value's place: its row's first block, and how many of the row came before it
    places = row_start[rows] * INDEXED_BLOCK + torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
    columns = torch.zeros(int(row_start[-1]) * INDEXED_BLOCK, dtype=torch.int32)
    values = torch.zeros(len(columns), dtype=torch.float32)
    columns[places] = used_columns.to(torch.int32)
    values[places] = weight[mask].float()
    return row_start.to(torch.int32), _sixteen_bits(columns), values


def _sixteen_bits(numbers: Tensor) -> Tensor:
    """torch's int16 with the bits of the engine's unsigned numbers."""
    return torch.where(numbers >= 2**15, numbers - 2**16, numbers).to(torch.int16).contiguous()


def pack_bitmask(weight: Tensor, lanes: int) -> tuple[Tensor, Tensor, Tensor]:
    """A (rows, columns) weight as first values of rows, bits (one int16 for 16 columns) and values with a vector to spare."""
    rows, columns = weight.shape
    words = -(-columns // BITMASK_COLUMNS)
    mask = torch.zeros(rows, words * BITMASK_COLUMNS, dtype=torch.bool)
    mask[:, :columns] = weight != 0
    counts = mask.sum(1)
    row_start = (counts.cumsum(0) - counts).to(torch.int32)
    places = 2 ** torch.arange(BITMASK_COLUMNS, dtype=torch.int32)
    bits = (mask.view(rows, words, BITMASK_COLUMNS) * places).sum(-1).to(torch.int32)
    values = torch.cat((weight[weight != 0].float(), torch.zeros(lanes, dtype=torch.float32)))
    return row_start, _sixteen_bits(bits), values
