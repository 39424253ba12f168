"""Images in files (one folder per class, parquet, or a dataset of the hub), decoded by Pillow when they are needed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autosparse.common.packages import need
from autosparse.data.augment import Numbers, centre_square, resized_crop_flip
from autosparse.data.batches import Indices
from autosparse.data.config import ImageData
from autosparse.data.fingerprint import digest, sampled
from autosparse.data.image_tables import image_column, label_column, open_tables

MEMORY = 2**30
"""Splits of at most this many bytes are decoded once and kept."""

_FETCHED = 256
MODES = {1: "L", 3: "RGB"}


class EncodedImages:
    """The labelled images of one split, as rows with encoded images."""

    scale = 255.0

    def __init__(
        self, rows: Any, image: str, labels: Tensor, split: str, config: ImageData, shape: tuple[int, int] | None
    ) -> None:
        self.rows, self.labels, self.split = rows, labels, split
        self._image, self._mode, self._side = image, MODES[config.channels], config.image_size
        self._margin = config.augment == "resized-crop-flip"
        if self._side is not None:
            shape = self._side, self._side
        elif shape is None:
            _, first = next(self.pictures(np.zeros(1, dtype=np.int64)))
            shape = first.height, first.width
        self.shape = config.channels, *shape

    def pictures(self, indices: Indices) -> Iterator[tuple[int, Any]]:
        """(index, image) one after the other, grey or in colour as asked."""
        # Rows are fetched in blocks: one by one costs more than decoding a small image.
        for begin in range(0, len(indices), _FETCHED):
            block = indices[begin : begin + _FETCHED].tolist()
            yield from (
                (index, self._decoded(cell, index)) for index, cell in zip(block, self.rows[block][self._image], strict=True)
            )

    def pixels(self, indices: Indices) -> Tensor:
        result = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        for row, (index, picture) in enumerate(self.pictures(indices)):
            result[row] = self._fitted(picture, index)
        return result

    def random_crops(self, indices: Indices, numbers: Numbers) -> Tensor:
        result = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        for row, (_, picture) in enumerate(self.pictures(indices)):
            result[row] = picture_tensor(resized_crop_flip(picture, self.shape[1], numbers[row]))
        return result

    def fingerprint(self) -> str:
        """Of the files as they are: another release of Pillow may decode them differently."""
        parts: list[str | bytes] = [self.labels.numpy().tobytes()]
        for cell in self.rows[sampled(len(self.labels)).tolist()][self._image]:
            content, path = _stored(cell)
            parts += [Path(path or "").name, _bytes(content, path)]
        return digest(parts)

    def _decoded(self, cell: Any, index: int) -> Any:
        from PIL import Image

        content, path = _stored(cell)
        file = path if content is None else io.BytesIO(content)
        try:
            if file is None:
                raise ValueError("the cell is empty")
            with Image.open(file) as picture:
                return picture.convert(self._mode)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            place = f"image {index} of {self.split}" + (f" ({path})" if path else "")
            raise ValueError(f"{place} cannot be read: {error}; replace it or leave it out") from error

    def _fitted(self, picture: Any, index: int) -> Tensor:
        if self._side is not None:
            picture = centre_square(picture, self._side, self._margin)
        elif (picture.height, picture.width) != self.shape[1:]:
            raise ValueError(
                f"image {index} of {self.split} is {picture.height}x{picture.width} (height x width) but the first is "
                f"{self.shape[1]}x{self.shape[2]}; give data.image_size, which brings all to one size"
            )
        return picture_tensor(picture)


def _stored(cell: Any) -> tuple[bytes | None, str | None]:
    """The encoded image of a cell, or the path of its file, or neither."""
    fields: dict[str, Any] = {"bytes": cell} if isinstance(cell, bytes) else cell or {}
    return fields.get("bytes"), fields.get("path")


def _bytes(content: bytes | None, path: str | None) -> bytes:
    """Nothing where the file cannot be read: whoever needs the image says so."""
    try:
        return Path(path).read_bytes() if content is None and path else content or b""
    except OSError:
        return b""


def open_encoded(config: ImageData, cache: Path | None) -> tuple[EncodedImages, EncodedImages]:
    """The images of the two splits."""
    need("PIL.Image", "reading images")
    tables = open_tables(config, cache)
    limits = (config.limit, config.limit_test)
    result: list[EncodedImages] = []
    for (split, table), limit in zip(tables, limits, strict=True):
        rows = table.select(range(min(limit, len(table)))) if limit else table
        if not len(rows):
            raise ValueError(f"split {split} holds no images")
        image, label = image_column(rows, config.image_column), label_column(rows, config.label_column, config.classes)
        labels = _labels(rows, label, split)
        shape = result[0].shape[1:] if result else None
        result.append(EncodedImages(_undecoded(rows.select_columns([image]), image), image, labels, split, config, shape))
    return result[0], result[1]


def _labels(rows: Any, column: str, split: str) -> Tensor:
    labels = np.asarray(rows.with_format("numpy")[column][:])
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"column {column} of {split} has gaps; every image needs a label")
    return torch.from_numpy(labels.astype(np.int64))


def _undecoded(rows: Any, column: str) -> Any:
    datasets = need("datasets", "reading images")
    if isinstance(rows.features[column], datasets.Image):
        rows = rows.cast_column(column, datasets.Image(decode=False))
    return rows.with_format(None)


def picture_tensor(picture: Any) -> Tensor:
    """uint8 (channels, height, width)."""
    pixels = torch.from_numpy(np.array(picture))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)
