"""Batches prepared by other processes, in the requested order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from autosparse.data.batches import Batch, Indices

Make = Callable[[Indices], Batch]  # of samples


def prepared(make: Make, share: list[Indices], workers: int) -> Iterator[Batch]:
    """The batch of every element of `share`; with workers they are prepared ahead of time in other processes."""
    if not workers or not share:
        return map(make, share)
    return _by_workers(make, share, workers)


@dataclass(frozen=True)
class InWorker(Dataset[Batch | Exception]):
    """Batches made in another process; errors come back as values, since a loader would bury them in its traceback."""

    make: Make

    def __getitem__(self, indices: Indices) -> Batch | Exception:
        try:
            return self.make(indices)
        except (OSError, ValueError) as error:
            return error


def _by_workers(make: Make, share: list[Indices], workers: int) -> Iterator[Batch]:
    # With torch's global generator the loader would draw from it, and a resumed run would differ from an uninterrupted one.
    loader: DataLoader[Batch | Exception] = DataLoader(
        InWorker(make),
        batch_size=None,
        sampler=share,
        num_workers=min(workers, len(share)),
        collate_fn=_as_it_is,
        generator=torch.Generator(),
    )
    for batch in loader:
        if isinstance(batch, Exception):
            raise batch
        yield batch


def _as_it_is(batch: Any) -> Any:
    return batch
