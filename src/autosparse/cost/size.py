"""Bytes of the sparse file of a model (the page on its format), from shapes and zeros alone; never fewer than the file has."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from autosparse.common.words import require

UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
PARTS = (":blocks", ":mask", ":values")
SCALES = ":scales"
VALUES = {"float32": "F32", "bfloat16": "BF16", "int8": "I8"}  # as the header names them
WIDTHS = {"float32": 4, "bfloat16": 2, "int8": 1}  # bytes of a weight
HEADER = 150  # bytes that a sparse tensor's two further parts take in the header, beside their names
SHA = "0" * 64


def bytes_of(size: str | int) -> int:
    """A size such as "4 MB" in bytes; a MB is 10^6 of them."""
    if isinstance(size, int) and not isinstance(size, bool):
        number, unit = float(size), "B"
    else:
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\s*", str(size))
        allowed = f"a number and one of {', '.join(UNITS)}, such as '4 MB', or a whole number of bytes"
        require(match is not None and match[2] in UNITS, "target_size", size, allowed)
        assert match is not None
        number, unit = float(match[1]), match[2]
    require(number > 0, "target_size", size, "more than 0 bytes")
    return int(number * UNITS[unit])


def header_bytes(
    sparse: Mapping[str, tuple[int, ...]],
    dense: Mapping[str, tuple[int, ...]],
    tied: Iterable[str],
    largest: int,
    precision: str = "float32",
) -> int:
    """Bytes of the header and of the table of contents in it, in a file of at most `largest` bytes."""
    entries, parts = {}, {}
    for stored, shapes in (("sparse", sparse), ("dense", dense)):
        for name, shape in shapes.items():
            sides = list(shape)
            entries[name] = {"stored": stored, "shape": sides, "dtype": "F32", "values": VALUES[precision], "sha256": SHA}
            numbers = [math.prod(shape)] if stored == "sparse" else sides
            for part in (*(PARTS if stored == "sparse" else ("",)), *[SCALES] * (precision == "int8" and len(shape) > 1)):
                parts[name + part] = {"dtype": "F32", "shape": numbers, "data_offsets": [largest, largest]}
    longest = max((*sparse, *dense), key=len)
    content = {"version": 1, "tensors": entries, "tied": dict.fromkeys(tied, longest), "sha256": SHA}
    table = json.dumps(content, separators=(",", ":"))
    header = json.dumps({"__metadata__": {"autosparse": table}, **parts}, separators=(",", ":"))
    return 16 + len(header)


def width_and_scales(shape: tuple[int, ...], itemsize: int, precision: str) -> tuple[int, int]:
    """Bytes of one number of a float tensor in a file of this precision, and of its scales; vectors keep theirs."""
    width = min(itemsize, WIDTHS[precision])
    if len(shape) < 2 or width == itemsize:
        return itemsize, 0
    scales = 4 * shape[0] if precision == "int8" else 0
    return (width, scales) if width * math.prod(shape) + scales < itemsize * math.prod(shape) else (itemsize, 0)


def mask_bytes(active: Tensor) -> int:
    """Groups of eight weights of which one is active: each takes a byte."""
    flat = active.reshape(-1)
    groups = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
    return int(torch.count_nonzero(groups.any(1)))


def tensor_bytes(name: str, count: int, active: float, masks: float, itemsize: int = 4) -> float:
    """Data bytes of one float tensor of `count` weights, stored sparse or dense, whichever takes less room."""
    groups = -(-count // 8)
    sparse = -(-groups // 8) + masks + itemsize * active
    return sparse if sparse + HEADER + 2 * len(name) < itemsize * count else itemsize * count
