"""The batches that every kind of data gives to a training loop, and their order, shares and random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from autosparse.data.tokenizer import Text

Batch = tuple[tuple[Tensor, ...], Tensor]
"""(inputs, target): output = model(*inputs)."""

Indices = npt.NDArray[np.int64]
ORDER, AUGMENTATION = 0, 1
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


class Batches(Protocol):
    """The batches of one split on one rank."""

    @property
    def steps(self) -> int:
        """Batches per epoch on this rank; in training the same on every rank and in every epoch."""

    @property
    def samples(self) -> int:
        """Samples of the whole split, over all ranks."""

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number`, beginning at batch `skip` as if the ones before had been consumed."""


@dataclass(frozen=True)
class Data:
    """The splits of a dataset, ready for a training loop."""

    train: Batches
    validation: Batches
    test: Batches
    facts: dict[str, Any]
    padding_id: int | None = None
    text: Text | None = None
    fingerprint: dict[str, str] = field(default_factory=dict)  # per split: what a resumed run recognises its data by


def permutation(count: int, seed: int, epoch: int) -> Indices:
    """The order of `count` samples in an epoch: a function of (seed, epoch) alone."""
    return np.random.default_rng([seed, epoch, ORDER]).permutation(count)


def uniform(indices: Indices, draws: int, seed: int, epoch: int) -> npt.NDArray[np.float64]:
    """Random numbers in [0, 1), (samples, draws): a function of (seed, epoch, sample index), not of the rest of the batch."""
    # SplitMix64, a generator with random access: number k of the stream is a hash of key + k * gamma. Sample i owns the
    # numbers i * draws to (i + 1) * draws - 1, so no state has to be carried through workers, ranks or a resume.
    key = np.random.SeedSequence([seed, epoch, AUGMENTATION]).generate_state(1, np.uint64)[0]
    place = indices.astype(np.uint64)[:, None] * np.uint64(draws) + np.arange(1, draws + 1, dtype=np.uint64)
    bits = key + place * _GAMMA
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    result: npt.NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return result


def check_ranks(samples: int, rank: int, world: int, split: str) -> None:
    """Every rank needs at least one sample."""
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world} processes; ranks run from 0 to world - 1")
    if samples < world:
        raise ValueError(f"{world} processes for {samples} {split} samples: start at most {samples}, or give more data")


def check_training(samples: int, batch_size: int, world: int) -> None:
    """Training batches are whole and split evenly over the ranks."""
    if batch_size % world:
        nearest = max(batch_size // world, 1) * world
        raise ValueError(f"batch_size = {batch_size} does not split over {world} processes; take a multiple, such as {nearest}")
    if samples < batch_size:
        raise ValueError(
            f"batch_size = {batch_size}, but there are only {samples} training samples; lower it or give more data"
        )


def training_share(order: Indices, batch_size: int, rank: int, world: int, skip: int = 0) -> list[Indices]:
    """This rank's part of every whole batch of `order`; the parts of all ranks, one after the other, are the batch."""
    part = batch_size // world
    starts = range(skip * batch_size, len(order) - batch_size + 1, batch_size)
    return [order[start + rank * part : start + (rank + 1) * part] for start in starts]


def evaluation_share(samples: int, batch_size: int, rank: int, world: int, skip: int = 0) -> list[Indices]:
    """This rank's batches of a split that is read once, in order: every sample on exactly one rank."""
    mine = np.arange(rank, samples, world)
    part = max(batch_size // world, 1)
    return [mine[start : start + part] for start in range(skip * part, len(mine), part)]


@dataclass(frozen=True)
class SampleBatches:
    """Batches of samples, each with its label, of one split on one rank: shuffled for training, otherwise every one once."""

    samples: int
    batch_size: int
    training: bool
    seed: int
    rank: int
    world: int

    @property
    def steps(self) -> int:
        if self.training:
            return self.samples // self.batch_size
        return len(evaluation_share(self.samples, self.batch_size, self.rank, self.world))

    def share(self, number: int, skip: int) -> list[Indices]:
        """The samples of every batch of epoch `number` from batch `skip` on."""
        if not self.training:
            return evaluation_share(self.samples, self.batch_size, self.rank, self.world, skip)
        return training_share(permutation(self.samples, self.seed, number), self.batch_size, self.rank, self.world, skip)


def check_splits(training: int, validation: int, batch_size: int, rank: int, world: int) -> None:
    """Refuse splits that are too small for the batches or the ranks."""
    check_ranks(training, rank, world, "training")
    check_ranks(validation, rank, world, "validation")
    check_training(training, batch_size, world)
