"""The sparse file's table of contents: what safetensors' metadata says of every tensor. docs/format.md describes it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

VERSION = 1
KEY = "autosparse"  # of the metadata; one key alone, since safetensors writes several in any order
BLOCKS, MASK, VALUES = ":blocks", ":mask", ":values"
SUFFIXES = (BLOCKS, MASK, VALUES)
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Integers of the same width: torch does not always copy floats bit for bit.
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOATS = ("F64", "F32", "F16", "BF16")
LARGEST = 2**48  # elements of a tensor, empty sides not counted: more than any memory holds
SIDES = 32
LONGEST_NAME = 1024
_SEAL = ',"sha256":"'


@dataclass(frozen=True)
class Entry:
    """One tensor of the file."""

    stored: str  # "sparse" or "dense"
    shape: tuple[int, ...]
    dtype: str  # of the tensor as it is loaded
    values: str  # of its numbers in the file; narrower where half precision was asked for
    sha256: str  # of its parts' bytes, one after the other

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def parts(self, name: str) -> list[str]:
        """The names of its pieces in the file, in the order of the checksum."""
        return [name + suffix for suffix in SUFFIXES] if self.stored == "sparse" else [name]


@dataclass(frozen=True)
class Layout:
    """All tensors of a file; `tied` are further names of tensors that are stored once."""

    tensors: dict[str, Entry]
    tied: dict[str, str]


def mask_bytes(count: int) -> int:
    """Bytes of a mask of `count` bits."""
    return -(-count // 8)


def write_layout(layout: Layout) -> str:
    """The metadata's text, closed with its own checksum."""
    tensors = {name: vars(entry) for name, entry in layout.tensors.items()}
    content = {"version": VERSION, "tensors": tensors, "tied": layout.tied}
    body = json.dumps(content, separators=(",", ":"))[:-1]
    return f'{body}{_SEAL}{hashlib.sha256(body.encode()).hexdigest()}"}}'


def read_layout(text: str) -> Layout:
    """Everything checked that can be without the data; a ValueError says what is wrong."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its table of contents is not JSON ({type(error).__name__})") from None
    _expect(isinstance(content, dict) and "version" in content, "its table of contents has no version")
    if content["version"] != VERSION or isinstance(content["version"], bool):
        raise ValueError(f"it has version {str(content['version'])[:40]}, this release reads {VERSION}; update autosparse")
    body, _, seal = text.rpartition(_SEAL)
    _expect(seal == hashlib.sha256(body.encode()).hexdigest() + '"}', "its table of contents was altered (checksum)")
    _expect(content.keys() == {"version", "tensors", "tied", "sha256"}, "its table of contents has unknown keys")
    tensors, tied = content["tensors"], content["tied"]
    _expect(isinstance(tensors, dict) and isinstance(tied, dict), "its table of contents is not made of tensors")
    layout = Layout({name: _entry(check_name(name), entry) for name, entry in tensors.items()}, tied)
    for name, target in tied.items():
        check_name(name)
        _expect(isinstance(target, str) and target in tensors, f"{name} is tied to a tensor that is not there")
        _expect(name not in tensors, f"{name} is there twice")
    return layout


def check_name(name: str) -> str:
    """A tensor's name as models have them; refused are names that a program might take for a path, or not print."""
    parts = name.split(".")
    allowed = name.isprintable() and not any(letter in name for letter in "/\\") and all(parts) and name != "__metadata__"
    if not allowed or len(name) > LONGEST_NAME or name.endswith(SUFFIXES):
        raise ValueError(
            f"the tensor name {name[:80]!r} is refused: names are words with dots between, without slashes, not ending in "
            f"{', '.join(SUFFIXES)}"
        )
    return name


def _entry(name: str, entry: Any) -> Entry:
    keys = set(Entry.__dataclass_fields__)
    _expect(isinstance(entry, dict) and entry.keys() == keys, f"the entry of {name} must have {', '.join(sorted(keys))}")
    shape, dtype, values = entry["shape"], entry["dtype"], entry["values"]
    valid = isinstance(shape, list) and all(type(side) is int and side >= 0 for side in shape) and len(shape) <= SIDES
    _expect(valid, f"the shape of {name} must be up to {SIDES} whole numbers")
    _expect(math.prod(side for side in shape if side) <= LARGEST, f"the shape of {name} is impossibly large")
    _expect(entry["stored"] in ("sparse", "dense"), f"{name} is stored in an unknown way")
    for word in (dtype, values):
        _expect(isinstance(word, str) and word in DTYPES, f"{name} has an unknown dtype; known are {', '.join(DTYPES)}")
    same = dtype == values
    _expect(same or (dtype in FLOATS and values in FLOATS), f"{name}: numbers of {values} do not become {dtype}")
    _expect(entry["stored"] == "dense" or values in FLOATS, f"{name}: {values} is not stored sparse")
    _expect(isinstance(entry["sha256"], str), f"the checksum of {name} is not text")
    return Entry(entry["stored"], tuple(shape), dtype, values, entry["sha256"])


def _expect(true: bool, otherwise: str) -> None:
    if not true:
        raise ValueError(otherwise)


def digest(parts: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of the parts' bytes, one part after the other."""
    sha = hashlib.sha256()
    for part in parts.values():
        sha.update(part.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()
