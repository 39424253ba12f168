"""Finds, loads and describes the native library. Nothing is ever built here, and a missing library is not an error."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch  # noqa: F401  before the library: both must share torch's OpenMP runtime

INTERFACE_VERSION = 9
FILE_NAME = "libautosparse_kernels.so"
VARIABLE = "AUTOSPARSE_KERNELS"
FOLDER_VARIABLE = "AUTOSPARSE_KERNELS_DIR"
INSTRUCTION_SETS = ("avx512", "avx2", "portable")  # the best first
HOW_TO_BUILD = "build it with `python -m autosparse.kernels.build`"


class Pass(Structure):
    """interface.h: Pass."""

    _fields_ = [
        *((name, c_int64) for name in (
            "images", "in_rows", "in_cols", "in_channels", "out_rows", "out_cols", "out_channels",
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


class Depthwise(Structure):
    """interface.h: Depthwise."""

    _fields_ = [
        (name, c_int64) for name in ("images", "in_rows", "in_cols", "out_rows", "out_cols", "channels", "stride")
    ]  # fmt: skip


SUMS = 3  # interface.h: kSums


def _function(result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)


_PASS, _LAYOUT, _TARGET = POINTER(Pass), POINTER(WeightLayout), POINTER(TransposedLayout)
_SOURCE, _SINK, _DEPTHWISE = POINTER(Source), POINTER(Sink), POINTER(Depthwise)
_INT, _FLOAT, _DOUBLE, _ARRAY = c_int64, c_float, c_double, c_void_p


class KernelTable(Structure):
    """interface.h: KernelTable."""

    _fields_ = [
        ("lanes", c_int64),
        ("max_vectors", c_int64),
        ("gather_scratch", _function(_INT, _PASS, _INT)),
        ("weight_gradient_scratch", _function(_INT, _PASS, _INT)),
        ("gather", _function(None, _PASS, *[_ARRAY] * 4, _INT, _INT, _ARRAY, _ARRAY)),
        ("weight_gradient", _function(None, _PASS, *[_ARRAY] * 4, _INT, _INT, _INT, _ARRAY, _ARRAY)),
        ("fused_gather", _function(None, _PASS, _SOURCE, *[_ARRAY] * 3, _INT, _INT, _INT, _ARRAY, _SINK)),
        ("fused_weight_gradient", _function(None, _PASS, _SOURCE, _SOURCE, _ARRAY, _ARRAY, _INT, _INT, _INT, _ARRAY, _ARRAY)),
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
        ("sweep", _function(None, _INT, _INT, _SOURCE, _INT, _INT, _SINK)),
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
    ]


@dataclass(frozen=True, eq=False)
class Kernels:
    """The kernels in use: an instruction set and its table of functions."""

    instruction_set: str
    table: Any

    @property
    def lanes(self) -> int:
        return int(self.table.lanes)

    @property
    def max_vectors(self) -> int:
        return int(self.table.max_vectors)


@dataclass(frozen=True)
class Loaded:
    """The outcome of loading: kernels, or the reason why there are none."""

    kernels: Kernels | None
    reason: str | None


def library_path() -> Path:
    """Where the library is expected: beside this file, or in the folder that AUTOSPARSE_KERNELS_DIR names."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return (Path(folder) if folder else Path(__file__).parent) / FILE_NAME


@lru_cache(maxsize=1)
def load() -> Loaded:
    """Load the library once, for the instruction set that AUTOSPARSE_KERNELS asks for or the best this processor has."""
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    if wanted == "off":
        return Loaded(None, f"switched off by {VARIABLE}=off")
    if wanted and wanted not in INSTRUCTION_SETS:
        return Loaded(None, f"{VARIABLE}={wanted} is unknown; allowed: {', '.join(INSTRUCTION_SETS)}, off")
    path = library_path()
    if not path.is_file():
        return Loaded(None, f"the native library is not there ({FILE_NAME}); {HOW_TO_BUILD}")
    try:
        library = ctypes.CDLL(str(path))
        version = library.autosparse_interface_version()
    except (OSError, AttributeError) as error:
        return Loaded(None, f"the native library cannot be loaded on this machine ({_one_line(error)}); {HOW_TO_BUILD}")
    if version != INTERFACE_VERSION:
        return Loaded(
            None, f"the native library has interface version {version}, {INTERFACE_VERSION} is needed; {HOW_TO_BUILD}"
        )
    library.autosparse_kernel_table.restype = POINTER(KernelTable)
    library.autosparse_kernel_table.argtypes = [c_char_p]
    for name in (wanted,) if wanted else INSTRUCTION_SETS:
        table = library.autosparse_kernel_table(name.encode())
        if table:
            return Loaded(Kernels(name, table.contents), None)
    return Loaded(None, f"this processor cannot run the {wanted} kernels; leave {VARIABLE} unset to choose by itself")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def kernels() -> Kernels:
    """The loaded kernels; an error if there are none."""
    loaded = load()
    if loaded.kernels is None:
        raise RuntimeError(f"no sparse kernels: {loaded.reason}")
    return loaded.kernels


def available() -> bool:
    """Whether the native kernels can be used."""
    return load().kernels is not None


def why_not() -> str | None:
    """Why the native kernels cannot be used, in one line; None if they can."""
    return load().reason


def instruction_set() -> str | None:
    """The instruction set in use: avx512, avx2 or portable; None without kernels."""
    loaded = load().kernels
    return loaded.instruction_set if loaded else None
