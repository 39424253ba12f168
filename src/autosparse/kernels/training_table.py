"""The training kernels as Python sees them: the structs of native/training/interface.h and the table of functions."""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, Structure, c_double, c_float, c_int64, c_void_p

from autosparse.kernels.native_fields import addresses, fields, integers


class Pass(Structure):
    """interface.h: Pass."""

    _fields_ = [
        *integers(
            "images", "images_last", "in_rows", "in_cols", "in_channels", "out_rows", "out_cols", "out_channels",
            "grid_rows", "grid_cols", "out_first_row", "out_first_col", "out_row_step", "out_col_step",
            "in_first_row", "in_first_col", "in_row_step", "in_col_step",
            "patch_rows", "patch_cols", "patches_down", "patches_across", "site_step", "pixel_step",
            "tile_rows", "tile_cols", "window_rows", "window_cols", "slots_per_row", "block_channels",
        ),
        *addresses("used_rows", "used_cols"),
    ]  # fmt: skip


class WeightLayout(Structure):
    """interface.h: WeightLayout."""

    _fields_ = integers("rows", "channels", "taps", "block_channels", "channels_last")


class TransposedLayout(Structure):
    """interface.h: TransposedLayout."""

    _fields_ = integers("compressed_rows", "rows_per_block", "block_channels", "channel_stride")


class Source(Structure):
    """interface.h: Source."""

    _fields_ = [("kind", c_int64), *addresses("tensor", "scale", "offset", "other", "other_scale", "other_offset")]


class Sink(Structure):
    """interface.h: Sink."""

    _fields_ = [
        ("kind", c_int64),
        ("target", c_void_p),
        ("streams", c_int64),
        *addresses("shift", "raw", "scale", "offset", "added", "result", "other", "other_shift", "slice_sums", "sums"),
    ]


class Extent(Structure):
    """interface.h: Extent."""

    _fields_ = integers("images", "rows", "cols", "channels")


class Depthwise(Structure):
    """interface.h: Depthwise."""

    _fields_ = integers("images", "in_rows", "in_cols", "out_rows", "out_cols", "channels", "stride")


SUMS = 3  # interface.h: kSums


_PASS, _LAYOUT, _TARGET = POINTER(Pass), POINTER(WeightLayout), POINTER(TransposedLayout)
_SOURCE, _SINK, _EXTENT, _DEPTHWISE = POINTER(Source), POINTER(Sink), POINTER(Extent), POINTER(Depthwise)
_INT, _FLOAT, _DOUBLE, _ARRAY = c_int64, c_float, c_double, c_void_p


class TrainingTable(Structure):
    """interface.h: TrainingTable."""

    _fields_ = [
        *integers("lanes", "max_vectors", "max_tile"),
        *fields(CFUNCTYPE(_INT, _PASS, _INT), "gather_scratch", "weight_gradient_scratch"),
        ("gather", CFUNCTYPE(None, _PASS, _SOURCE, *[_ARRAY] * 3, _INT, _INT, _INT, _ARRAY, _SINK)),
        ("weight_gradient", CFUNCTYPE(None, _PASS, _SOURCE, _SOURCE, _ARRAY, _ARRAY, _INT, _INT, _INT, _ARRAY, _ARRAY)),
        ("joint_gradient_scratch", CFUNCTYPE(_INT, _PASS, _PASS)),
        (
            "joint_gradient",
            CFUNCTYPE(None, _PASS, _PASS, _SOURCE, _SOURCE, *[_ARRAY] * 4, _INT, _INT, _ARRAY, _SINK, _ARRAY),
        ),
        ("depthwise_scratch", CFUNCTYPE(_INT, _DEPTHWISE, _INT)),
        ("depthwise_forward", CFUNCTYPE(None, _DEPTHWISE, _SOURCE, _ARRAY, _INT, _INT, _ARRAY, _SINK)),
        (
            "depthwise_gradients",
            CFUNCTYPE(None, _DEPTHWISE, _SOURCE, _SOURCE, _ARRAY, _INT, _INT, _ARRAY, _SINK, _ARRAY, _ARRAY),
        ),
        ("sweep", CFUNCTYPE(None, _EXTENT, _INT, _SOURCE, _INT, _INT, _SINK)),
        ("turn", CFUNCTYPE(None, _EXTENT, _INT, _SOURCE, _INT, _SINK)),
        ("fold_statistics", CFUNCTYPE(_INT, _INT, _INT, _ARRAY, _ARRAY, _DOUBLE, *[_ARRAY] * 4)),
        ("track_statistics", CFUNCTYPE(None, _INT, _INT, _ARRAY, _DOUBLE, _ARRAY, _ARRAY)),
        ("fold_gradients", CFUNCTYPE(None, _INT, _INT, *[_ARRAY] * 6)),
        ("scatter", CFUNCTYPE(None, _LAYOUT, *[_ARRAY] * 4, _INT, _INT, _INT, _ARRAY)),
        *fields(CFUNCTYPE(_INT, _LAYOUT, _ARRAY, _INT, _ARRAY), "count_weight", "count_mask"),
        *fields(CFUNCTYPE(None, _LAYOUT, _ARRAY, _ARRAY, _INT, _ARRAY, _ARRAY), "compress_weight", "compress_mask"),
        ("refresh", CFUNCTYPE(_INT, _LAYOUT, _ARRAY, _ARRAY, _INT, _ARRAY, _ARRAY)),
        ("transpose", CFUNCTYPE(None, _LAYOUT, _TARGET, *[_ARRAY] * 3, _INT, *[_ARRAY] * 4)),
        ("refresh_transposed", CFUNCTYPE(None, _INT, _ARRAY, _ARRAY, _INT, _ARRAY)),
        ("soft_threshold", CFUNCTYPE(_INT, _INT, _ARRAY, _FLOAT, _INT, _ARRAY)),
        ("soft_threshold_gradients", CFUNCTYPE(_DOUBLE, _INT, _ARRAY, _ARRAY, *[_FLOAT] * 3, _INT, _ARRAY, _ARRAY)),
        ("count_above", CFUNCTYPE(_INT, _INT, _ARRAY, _FLOAT, _INT)),
        ("masked_product", CFUNCTYPE(_INT, _INT, _ARRAY, _ARRAY, _ARRAY, _FLOAT, _INT, _ARRAY)),
    ]
