"""Pictures, files and configurations that the image tests make."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from autosparse.data import ImageData


def picture(number: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
    """A (width, height) picture of smooth colours, different for every number."""
    y, x = np.mgrid[0 : size[1], 0 : size[0]]
    colours = [(x * 3 + number * 17) % 256, (y * 5 + number * 29) % 256, (x + y + number * 41) % 256]
    return Image.fromarray(np.stack(colours, -1).astype(np.uint8))


def encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def image_config(**fields: Any) -> ImageData:
    return ImageData(**{"batch_size": 4, "classes": 3, **fields})


def write_parquet(path: Path, numbers: Sequence[int], size: tuple[int, int] = (40, 32)) -> None:
    """The hub's layout: an image column of bytes and path, a label column that knows its classes."""
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "emu"])})
    rows = {"image": [picture(n, size) for n in numbers], "label": [n % 3 for n in numbers]}
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_dict(rows, features=features).to_parquet(path)


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    """MNIST's format: zero, zero, 8 for bytes, dimensions, sizes in big-endian order, values."""
    content = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
