"""The training kernels as Python sees them: the structs of native/training/interface.h and the table of functions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int64, c_void_p
from typing import Any


class Pass(Structure):
    """interface.h: Pass."""

    _fields_ = [
        *((name, c_int64) for name in (
            "images", "images_last", "in_rows", "in_cols", "in_channels", "out_rows", "out_cols", "out_channels",
            "grid_rows", "grid_cols", "out_first_row", "out_first_col", "out_row_step", "out_col_step",
            "in_first_row", "in_first_col", "in_row_step", "in_col_step",
            "patch_rows", "patch_cols", "patches_down", "patches_across", "site_step", "pixel_step",
            "tile_rows", "tile_cols", "window_rows", "window_cols", "slots_per_row", "block_channels",
        )),
        ("used_rows", c_void_p),
        ("used_cols", c_void_p),
    ]  # fmt: skip


class WeightLayout(Structure):
    """interface.h: WeightLayout."""

    _fields_ = [(name, c_int64) for name in ("rows", "channels", "taps", "block_channels", "channels_last")]


class TransposedLayout(Structure):
    """interface.h: TransposedLayout."""

    _fields_ = [(name, c_int64) for name in ("compressed_rows", "rows_per_block", "block_channels", "channel_stride")]


class Source(Structure):
    """interface.h: Source."""

    _fields_ = [
        ("kind", c_int64),
        *((name, c_void_p) for name in ("tensor", "scale", "offset", "other", "other_scale", "other_offset")),
    ]


class Sink(Structure):
    """interface.h: Sink."""

    _fields_ = [
        ("kind", c_int64),
        ("target", c_void_p),
        ("streams", c_int64),
        *((name, c_void_p) for name in (
            "shift", "raw", "scale", "offset", "added", "result", "other", "other_shift", "slice_sums", "sums",
        )),
    ]  # fmt: skip


class Extent(Structure):
    """interface.h: Extent."""

    _fields_ = [(name, c_int64) for name in ("images", "rows", "cols", "channels")]


class Depthwise(Structure):
    """interface.h: Depthwise."""

    _fields_ = [
        (name, c_int64) for name in ("images", "in_rows", "in_cols", "out_rows", "out_cols", "channels", "stride")
    ]  # fmt: skip


SUMS = 3  # interface.h: kSums


def _function(result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)


_PASS, _LAYOUT, _TARGET = POINTER(Pass), POINTER(WeightLayout), POINTER(TransposedLayout)
_SOURCE, _SINK, _EXTENT, _DEPTHWISE = POINTER(Source), POINTER(Sink), POINTER(Extent), POINTER(Depthwise)
_INT, _FLOAT, _DOUBLE, _ARRAY = c_int64, c_float, c_double, c_void_p


class TrainingTable(Structure):
    """interface.h: TrainingTable."""

    _fields_ = [
        ("lanes", c_int64),
        ("max_vectors", c_int64),
        ("max_tile", c_int64),
        ("gather_scratch", _function(_INT, _PASS, _INT)),
        ("weight_gradient_scratch", _function(_INT, _PASS, _INT)),
        ("gather", _function(None, _PASS, _SOURCE, *[_ARRAY] * 3, _INT, _INT, _INT, _ARRAY, _SINK)),
        ("weight_gradient", _function(None, _PASS, _SOURCE, _SOURCE, _ARRAY, _ARRAY, _INT, _INT, _INT, _ARRAY, _ARRAY)),
        ("joint_gradient_scratch", _function(_INT, _PASS, _PASS)),
        (
            "joint_gradient",
            _function(None, _PASS, _PASS, _SOURCE, _SOURCE, *[_ARRAY] * 4, _INT, _INT, _ARRAY, _SINK, _ARRAY),
        ),
        ("depthwise_scratch", _function(_INT, _DEPTHWISE, _INT)),
        ("depthwise_forward", _function(None, _DEPTHWISE, _SOURCE, _ARRAY, _INT, _INT, _ARRAY, _SINK)),
        (
            "depthwise_gradients",
            _function(None, _DEPTHWISE, _SOURCE, _SOURCE, _ARRAY, _INT, _INT, _ARRAY, _SINK, _ARRAY, _ARRAY),
        ),
        ("sweep", _function(None, _EXTENT, _INT, _SOURCE, _INT, _INT, _SINK)),
        ("turn", _function(None, _EXTENT, _INT, _SOURCE, _INT, _SINK)),
        ("fold_statistics", _function(_INT, _INT, _INT, _ARRAY, _ARRAY, _DOUBLE, *[_ARRAY] * 4)),
        ("track_statistics", _function(None, _INT, _INT, _ARRAY, _DOUBLE, _ARRAY, _ARRAY)),
        ("fold_gradients", _function(None, _INT, _INT, *[_ARRAY] * 6)),
        ("scatter", _function(None, _LAYOUT, *[_ARRAY] * 4, _INT, _INT, _INT, _ARRAY)),
        ("count_weight", _function(_INT, _LAYOUT, _ARRAY, _INT, _ARRAY)),
        ("count_mask", _function(_INT, _LAYOUT, _ARRAY, _INT, _ARRAY)),
        ("compress_weight", _function(None, _LAYOUT, _ARRAY, _ARRAY, _INT, _ARRAY, _ARRAY)),
        ("compress_mask", _function(None, _LAYOUT, _ARRAY, _ARRAY, _INT, _ARRAY, _ARRAY)),
        ("refresh", _function(_INT, _LAYOUT, _ARRAY, _ARRAY, _INT, _ARRAY, _ARRAY)),
        ("transpose", _function(None, _LAYOUT, _TARGET, *[_ARRAY] * 3, _INT, *[_ARRAY] * 4)),
        ("refresh_transposed", _function(None, _INT, _ARRAY, _ARRAY, _INT, _ARRAY)),
        ("soft_threshold", _function(_INT, _INT, _ARRAY, _FLOAT, _INT, _ARRAY)),
        ("soft_threshold_gradients", _function(_DOUBLE, _INT, _ARRAY, _ARRAY, *[_FLOAT] * 3, _INT, _ARRAY, _ARRAY)),
        ("count_above", _function(_INT, _INT, _ARRAY, _FLOAT, _INT)),
        ("masked_product", _function(_INT, _INT, _ARRAY, _ARRAY, _ARRAY, _FLOAT, _INT, _ARRAY)),
    ]
