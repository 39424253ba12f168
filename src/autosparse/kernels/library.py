"""Finds and loads the native library. Nothing is ever built here, and a missing library is not an error."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_int32
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch  # before the library: both must share torch's OpenMP runtime

from autosparse.kernels.byte_table import ByteKernels, ByteTable
from autosparse.kernels.inference_table import InferenceTable
from autosparse.kernels.tiling import FLOAT_BYTES, VectorUnit
from autosparse.kernels.training_table import TrainingTable

INTERFACE_VERSION = 17
FILE_NAME = "libautosparse_kernels.so"
VARIABLE = "AUTOSPARSE_KERNELS"
# What the kernels for bfloat16 activations multiply in: "bfloat16" or "float32"; unset, what this processor is faster in.
PAIRS_VARIABLE = "AUTOSPARSE_BFLOAT16"
FOLDER_VARIABLE = "AUTOSPARSE_KERNELS_DIR"
HALF_BYTES = 2  # of a bfloat16
INSTRUCTION_SETS = ("avx512", "avx2", "portable")  # the best first
HALF_SET = "avx512_bf16"
# of the eight-bit kernels, with those that multiply bytes in one instruction first
BYTE_SETS = {"avx512": ("avx512_vnni", "avx512"), "avx2": ("avx_vnni", "avx2"), "portable": ("portable",)}
HOW_TO_BUILD = "run `python -m autosparse.kernels.build`"


class Tables(Structure):
    """library.h: Tables."""

    _fields_ = [("training", POINTER(TrainingTable)), ("inference", POINTER(InferenceTable))]


@dataclass(frozen=True, eq=False)
class Engine:
    """The inference kernels in use: an instruction set and its functions."""

    instruction_set: str
    table: Any
    lanes: int
    max_vectors: int
    dense_rows: int
    bytes: ByteKernels
    halves: ByteKernels | None = None  # bfloat16, where the processor has it


@dataclass(frozen=True, eq=False)
class Kernels:
    """The training kernels in use: an instruction set and its functions; the inference kernels of the same set."""

    instruction_set: str
    table: Any
    lanes: int
    max_vectors: int
    engine: Engine
    bfloat16: Any = None  # the same functions for tensors of activations in bfloat16; None if there are none
    pairs: bool = False  # whether these multiply in bfloat16, two non-zeros at a time

    def table_of(self, dtype: torch.dtype) -> Any:
        """The functions that read and write tensors of this type; weights are float32 for all of them."""
        return self.bfloat16 if dtype is torch.bfloat16 else self.table

    def unit(self, dtype: torch.dtype) -> VectorUnit:
        """What tiles of such tensors are cut for; cells are float32 unless pairs are multiplied in bfloat16."""
        halves = dtype is torch.bfloat16 and self.pairs
        return VectorUnit(self.lanes, self.max_vectors, self.table.max_tile, HALF_BYTES if halves else FLOAT_BYTES)


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
    choice = os.environ.get(VARIABLE, "").strip().lower()
    if choice == "off":
        return Loaded(None, f"switched off by {VARIABLE}=off")
    if choice and choice not in INSTRUCTION_SETS:
        return Loaded(None, f"{VARIABLE}={choice} is unknown; allowed: {', '.join(INSTRUCTION_SETS)}, off")
    path = library_path()
    if not path.is_file():
        return Loaded(None, f"the native library is missing ({FILE_NAME}): {HOW_TO_BUILD}")
    try:
        library = ctypes.CDLL(str(path))
        version = library.autosparse_interface_version()
    except (OSError, AttributeError) as error:
        return Loaded(None, f"the native library cannot be loaded on this machine ({_one_line(error)}): {HOW_TO_BUILD}")
    if version != INTERFACE_VERSION:
        return Loaded(
            None, f"the native library is of another version ({version}, {INTERFACE_VERSION} is needed): {HOW_TO_BUILD}"
        )
    library.autosparse_tables.restype = POINTER(Tables)
    library.autosparse_tables.argtypes = [c_char_p]
    library.autosparse_bfloat16_table.restype = POINTER(TrainingTable)
    library.autosparse_bfloat16_table.argtypes = [c_char_p, c_int32]
    for name in (choice,) if choice else INSTRUCTION_SETS:
        tables = library.autosparse_tables(name.encode())
        if tables:
            return Loaded(_kernels_of(name, tables.contents, library), None)
    return Loaded(None, f"this processor cannot run the {choice} kernels; leave {VARIABLE} unset to choose by itself")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def byte_kernels(library: Any, names: Sequence[str]) -> ByteKernels | None:
    """Of the first of these instruction sets that the processor has."""
    library.autosparse_byte_table.restype = POINTER(ByteTable)
    library.autosparse_byte_table.argtypes = [c_char_p]
    for name in names:
        table = library.autosparse_byte_table(name.encode())
        if table:
            return ByteKernels(name, table.contents, HALF_BYTES if name == HALF_SET else 1)
    return None


def _kernels_of(name: str, tables: Any, library: Any) -> Kernels:
    training, inference = _taken_out(tables.training.contents), _taken_out(tables.inference.contents)
    of_bytes = byte_kernels(library, BYTE_SETS[name])
    assert of_bytes is not None, "the last set goes with the float kernels"
    of_halves = byte_kernels(library, (HALF_SET,)) if name == "avx512" else None
    engine = Engine(name, inference, inference.lanes, inference.max_vectors, inference.dense_rows, of_bytes, of_halves)
    choice = os.environ.get(PAIRS_VARIABLE, "").strip().lower()
    paired = None
    if choice == "bfloat16" or (choice != "float32" and library.autosparse_prefers_pairs()):
        paired = library.autosparse_bfloat16_table(name.encode(), 1)
    halves = paired or library.autosparse_bfloat16_table(name.encode(), 0)
    table = _taken_out(halves.contents) if halves else None
    return Kernels(name, training, training.lanes, training.max_vectors, engine, table, bool(paired))


def _taken_out(table: Structure) -> SimpleNamespace:
    """The same fields, read once: ctypes makes a new function at every access, which takes as long as a small call."""
    return SimpleNamespace(**{name: getattr(table, name) for name, *_ in table._fields_})


def kernels() -> Kernels:
    """The loaded kernels; an error if there are none."""
    loaded = load()
    if loaded.kernels is None:
        raise RuntimeError(f"no sparse kernels: {loaded.reason}")
    return loaded.kernels


def engine() -> Engine | None:
    """The loaded inference kernels; None if there are none."""
    loaded = load().kernels
    return loaded.engine if loaded else None


def available(dtype: torch.dtype = torch.float32) -> bool:
    """Whether the native kernels can be used, on activations of this type: float32 or bfloat16."""
    loaded = load().kernels
    return loaded is not None and (dtype is torch.float32 or (dtype is torch.bfloat16 and loaded.bfloat16 is not None))


def why_not() -> str | None:
    """Why the native kernels cannot be used, in one line; None if they can."""
    return load().reason


def instruction_set() -> str | None:
    """The instruction set in use: avx512, avx2 or portable; None without kernels."""
    loaded = load().kernels
    return loaded.instruction_set if loaded else None


def lanes() -> int:
    """How many floats a vector of the kernels holds."""
    return kernels().lanes


def how_bfloat16_is_multiplied() -> str:
    """By the kernels for bfloat16 activations, in a few words."""
    loaded = load().kernels
    if loaded is None or loaded.bfloat16 is None:
        return "none"
    return "pairs in bfloat16" if loaded.pairs else "in float32"
