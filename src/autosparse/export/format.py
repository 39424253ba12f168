"""The sparse file's format: its table of contents, and how zeros are left out of a tensor. docs/format.md describes it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autosparse.common.warnings import warn
from autosparse.cost.size import HEADER, PARTS, SCALES
from autosparse.export.states import compact
from autosparse.quantization.affine import WEIGHT_LIMIT, dequantize_weight

VERSION, QUANTIZED_VERSION = 1, 2  # files without int8 weights stay as the first version wrote them
KEY = "autosparse"  # of the metadata; one key alone, since safetensors writes several in any order
BLOCKS, MASK, VALUES = PARTS
SUFFIXES = (*PARTS, SCALES)
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
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOATS = ("F64", "F32", "F16", "BF16")
INTEGERS = "I8"  # of a quantized weight: they become floats with one scale per row
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
    values: str  # of its numbers in the file; narrower where half precision or int8 was asked for
    sha256: str  # of its parts' bytes, one after the other

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def quantized(self) -> bool:
        return self.values == INTEGERS and self.dtype in FLOATS

    def parts(self, name: str) -> list[str]:
        """The names of its pieces in the file, in the order of the checksum."""
        numbers = [name + suffix for suffix in PARTS] if self.stored == "sparse" else [name]
        return numbers + [name + SCALES] * self.quantized


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
    version = QUANTIZED_VERSION if any(entry.quantized for entry in layout.tensors.values()) else VERSION
    content = {"version": version, "tensors": tensors, "tied": layout.tied}
    body = json.dumps(content, separators=(",", ":"))[:-1]
    return f'{body}{_SEAL}{hashlib.sha256(body.encode()).hexdigest()}"}}'


def read_layout(text: str) -> Layout:
    """Everything checked that can be without the data; a ValueError says what is wrong."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its table of contents is not JSON ({type(error).__name__})") from None
    _expect(isinstance(content, dict) and "version" in content, "its table of contents has no version")
    version = content["version"]
    if version not in (VERSION, QUANTIZED_VERSION) or isinstance(version, bool):
        known = f"{VERSION} and {QUANTIZED_VERSION}"
        raise ValueError(f"it has version {str(version)[:40]}, this release reads {known}; update autosparse")
    body, _, seal = text.rpartition(_SEAL)
    _expect(seal == hashlib.sha256(body.encode()).hexdigest() + '"}', "its table of contents was altered (checksum)")
    _expect(content.keys() == {"version", "tensors", "tied", "sha256"}, "its table of contents has unknown keys")
    tensors, tied = content["tensors"], content["tied"]
    _expect(isinstance(tensors, dict) and isinstance(tied, dict), "its table of contents is not made of tensors")
    layout = Layout({name: _entry(check_name(name), entry, version) for name, entry in tensors.items()}, tied)
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


def _entry(name: str, entry: Any, version: int) -> Entry:
    keys = set(Entry.__dataclass_fields__)
    _expect(isinstance(entry, dict) and entry.keys() == keys, f"the entry of {name} must have {', '.join(sorted(keys))}")
    shape, dtype, values = entry["shape"], entry["dtype"], entry["values"]
    valid = isinstance(shape, list) and all(type(side) is int and side >= 0 for side in shape) and len(shape) <= SIDES
    _expect(valid, f"the shape of {name} must be up to {SIDES} whole numbers")
    _expect(math.prod(side for side in shape if side) <= LARGEST, f"the shape of {name} is impossibly large")
    _expect(entry["stored"] in ("sparse", "dense"), f"{name} is stored in an unknown way")
    for word in (dtype, values):
        _expect(isinstance(word, str) and word in DTYPES, f"{name} has an unknown dtype; known are {', '.join(DTYPES)}")
    _expect(isinstance(entry["sha256"], str), f"the checksum of {name} is not text")
    read = Entry(entry["stored"], tuple(shape), dtype, values, entry["sha256"])
    quantized = read.quantized and version == QUANTIZED_VERSION
    becomes = quantized or dtype == values or (dtype in FLOATS and values in FLOATS)
    _expect(becomes, f"{name}: numbers of {values} do not become {dtype}")
    _expect(read.stored == "dense" or quantized or values in FLOATS, f"{name}: {values} is not stored sparse")
    _expect(not quantized or len(shape) > 1, f"{name}: int8 is for weights with two or more sides")
    return read


def _expect(true: bool, otherwise: str) -> None:
    if not true:
        raise ValueError(otherwise)


def digest(parts: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of the parts' bytes, one part after the other."""
    sha = hashlib.sha256()
    for part in parts.values():
        sha.update(part.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def encode(name: str, tensor: Tensor, scales: Tensor | None = None) -> dict[str, Tensor]:
    """Blocks, mask and values, or the tensor itself where that takes less room; of a quantized one also the scales."""
    if scales is not None:
        return _numbers(name, tensor) | {name + SCALES: scales}
    return _numbers(name, tensor) if NAMES[tensor.dtype] in FLOATS and tensor.ndim else {name: compact(tensor)}


def _numbers(name: str, tensor: Tensor) -> dict[str, Tensor]:
    flat = tensor.flatten()
    # by their bits: -0.0 and every kind of NaN are kept as they are
    bits = flat.view(BITS[tensor.itemsize])
    active = (bits != 0).numpy()
    mask = np.packbits(active, bitorder="little")
    blocks = np.packbits(mask != 0, bitorder="little")
    mask = mask[mask != 0]
    count = int(np.count_nonzero(active))
    size = blocks.nbytes + mask.nbytes + count * tensor.itemsize + HEADER + 2 * len(name)
    if size >= tensor.nbytes:
        return {name: compact(tensor)}
    negative = count - int(torch.count_nonzero(flat))
    if negative > 0.01 * tensor.numel():
        warn(f"{name} has {negative} weights of -0.0, which are stored to stay exact: add 0.0 to it, and they cost nothing")
    values = bits[torch.from_numpy(active)].view(tensor.dtype)
    return {name + BLOCKS: torch.from_numpy(blocks), name + MASK: torch.from_numpy(mask), name + VALUES: values}


def decode(entry: Entry, parts: list[Tensor]) -> Tensor:
    """The tensor of parts that `check_bits` and `check_integers` have passed."""
    if entry.quantized:
        numbers = _scatter(entry, parts[:-1], torch.int8) if entry.stored == "sparse" else parts[0]
        return dequantize_weight(numbers, parts[-1]).to(DTYPES[entry.dtype])
    if entry.stored == "dense":
        # a copy: what safetensors gives may be a view of the file, which can change
        return parts[0].to(DTYPES[entry.dtype], copy=True)
    return _scatter(entry, parts, DTYPES[entry.dtype])


def _scatter(entry: Entry, parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    blocks, mask, values = parts
    full = np.zeros(mask_bytes(entry.count), np.uint8)
    full[_unfold(blocks.numpy(), len(full))] = mask.numpy()
    tensor = torch.zeros(entry.shape, dtype=dtype)
    bits = BITS[tensor.itemsize]
    tensor.flatten().view(bits)[torch.from_numpy(_unfold(full, entry.count))] = values.to(tensor.dtype).view(bits)
    return tensor


def _unfold(bits: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)


def check_bits(name: str, blocks: npt.NDArray[np.uint8], mask: npt.NDArray[np.uint8], values: int, count: int) -> None:
    """Bits are counted where they lie: as many as what follows from them, and none beyond the end."""
    full = mask_bytes(count)
    if _ones(blocks) != len(mask) or _overhang(blocks, full):
        raise ValueError(f"{name}: its blocks do not agree with its mask")
    ends_in_mask = full and blocks[(full - 1) // 8] >> (full - 1) % 8 & 1
    if _ones(mask) != values or not mask.all() or (ends_in_mask and _overhang(mask[-1:], count - 8 * (full - 1))):
        raise ValueError(f"{name}: its mask does not agree with its values")


def check_integers(name: str, entry: Entry, integers: Tensor, scales: Tensor) -> None:
    """Integers from -127 to 127, and scales above zero with which all of them become finite numbers."""
    if not bool((integers != -128).all()):
        raise ValueError(f"{name}: its integers must lie between -127 and 127")
    largest = (scales * WEIGHT_LIMIT).to(DTYPES[entry.dtype])
    if not bool(((scales > 0) & largest.isfinite()).all()):
        raise ValueError(f"{name}: its scales must be finite numbers above zero")


def _ones(bits: npt.NDArray[np.uint8]) -> int:
    return int(np.bitwise_count(bits).sum(dtype=np.int64))


def _overhang(bits: npt.NDArray[np.uint8], count: int) -> bool:
    """Whether bits beyond the first `count` are set; they fill the last byte and must be zero."""
    return bool(len(bits) and bits[-1] >> (count - 8 * (len(bits) - 1)))
