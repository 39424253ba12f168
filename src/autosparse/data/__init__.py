"""Data of a recipe's `data:` block as batches: images and pairs of sentences, in an order that a resumed run continues."""

from __future__ import annotations

from pathlib import Path

from autosparse.data.batches import Batch, Batches, Data
from autosparse.data.config import AnyData, DataConfig, ImageData, TableData, TextData, TranslationData

__all__ = [
    "AnyData",
    "Batch",
    "Batches",
    "Data",
    "DataConfig",
    "ImageData",
    "TableData",
    "TextData",
    "TranslationData",
    "open_data",
]


def open_data(config: AnyData, *, seed: int = 0, rank: int = 0, world: int = 1, cache: Path | None = None) -> Data:
    """The splits for rank `rank` of `world`; `cache` is a folder for what is prepared once, the libraries' own by default."""
    if isinstance(config, ImageData):
        from autosparse.data.images import open_image_data

        return open_image_data(config, seed=seed, rank=rank, world=world, cache=cache)
    if isinstance(config, TableData | TextData):
        from autosparse.data.tables import open_rows

        return open_rows(config, seed=seed, rank=rank, world=world, cache=cache)
    from autosparse.data.translation import open_translation

    return open_translation(config, seed=seed, rank=rank, world=world, cache=cache)
