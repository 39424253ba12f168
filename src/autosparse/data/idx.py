"""Images and labels in MNIST's idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

_UNSIGNED_BYTES = 8


def read_split(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images (samples, height, width) and labels (samples,) of the split, uint8."""
    images = read_idx(_find(folder, split, "images", 3), 3)
    labels = read_idx(_find(folder, split, "labels", 1), 1)
    if len(images) != len(labels):
        raise ValueError(f"{folder}: {len(images)} {split} images but {len(labels)} labels; the files do not belong together")
    return images, labels


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The array of one idx file: two zero bytes, the type, the number of dimensions, their sizes, then the values."""
    content = _content(path)
    expected = bytes((0, 0, _UNSIGNED_BYTES, dimensions))
    begin = 4 + 4 * dimensions
    if content[:4] != expected or len(content) < begin:
        raise ValueError(
            f"{path} begins with {content[:4].hex(' ') or 'nothing'}; an idx file of bytes in {dimensions} dimensions begins "
            f"with {expected.hex(' ')} and {dimensions} sizes"
        )
    shape = [int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(dimensions)]
    count = math.prod(shape)
    if len(content) - begin != count:
        raise ValueError(f"{path} promises {shape} = {count} bytes but holds {len(content) - begin}; fetch it again")
    if not count:
        raise ValueError(f"{path} is empty: its sizes are {shape}")
    return torch.frombuffer(content, dtype=torch.uint8, offset=begin).view(shape)


def _content(path: Path) -> bytearray:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return bytearray(file.read())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error}); fetch it again") from error


def _find(folder: Path, split: str, what: str, dimensions: int) -> Path:
    names = [f"{split}-{what}{mark}idx{dimensions}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"no {split} {what} in {folder}: looked for {', '.join(names)}")
