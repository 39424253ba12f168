"""Translation data: pairs of sentences as token ids, in batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from autosparse.data.batches import Batch, Data, Indices, check_ranks, permutation
from autosparse.data.config import TranslationData
from autosparse.data.fingerprint import digest, sampled
from autosparse.data.pairs import Pairs, all_sentences, open_pairs
from autosparse.data.tokenizer import END_ID, PADDING_ID, START_ID, Text, open_tokenizer, read_tokenizer
from autosparse.data.workers import prepared

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Mismatched pairs (a word against a page) must not make a batch whose source fills the memory: a source may have this many
# times the tokens of the target.
SOURCE_LIMIT = 2


def open_translation(
    config: TranslationData, *, seed: int = 0, rank: int = 0, world: int = 1, cache: Path | None = None
) -> Data:
    """Sentence pairs for a training loop; the byte-pair encoding is trained here, or found in `cache`.

    A batch is ((source, target_in), target_out). Training batches are formed once, from the seed: the same whatever the
    number of ranks, each of which takes every world-th row, so shares differ by one row at most and no row is lost.
    """
    training = open_pairs(config, config.train_split, config.limit, cache)
    held_out = _held_out(config, cache)
    text = _text(open_tokenizer(training, config.vocabulary, config.lowercase, cache), config, held_out)
    encoded = encode_pairs(training, text)
    usable = encoded.fitting(config.max_length)
    if not len(usable):
        raise ValueError(
            f"none of the {training.count} training pairs has 1 to max_length = {config.max_length} tokens on both sides; "
            "raise max_length"
        )
    check_ranks(len(usable), rank, world, "training")
    groups = training_groups(encoded, usable, config.tokens_per_batch, seed, world)
    facts = {
        "training pairs": len(usable),
        "left out (too long or empty)": training.count - len(usable),
        "validation pairs": held_out["validation"].count,
        "test pairs": held_out["test"].count,
        "languages": " to ".join(config.languages),
        "vocabulary": text.vocabulary,
        "target tokens per epoch": int(encoded.target.lengths[usable].sum() + len(usable)),
    }
    train = TranslationBatches(encoded, groups, len(usable), config.workers, seed, rank, world)
    evaluation = _evaluation(config, held_out, text, rank, world)
    fingerprint = {"training": encoded.fingerprint()}
    fingerprint |= {name: batches.pairs.fingerprint() for name, batches in evaluation.items()}
    return Data(train, evaluation["validation"], evaluation["test"], facts, PADDING_ID, text, fingerprint)


def open_held_out(config: TranslationData, tokenizer: Path, *, cache: Path | None = None) -> Data:
    """Validation and test alone, with the tokenizer of a run: what scoring needs; `train` is empty."""
    held_out = _held_out(config, cache)
    text = _text(read_tokenizer(tokenizer), config, held_out)
    evaluation = _evaluation(config, held_out, text, 0, 1)
    nothing = TranslationBatches(evaluation["test"].pairs, [], 0)
    return Data(nothing, evaluation["validation"], evaluation["test"], facts={}, padding_id=PADDING_ID, text=text)


def _held_out(config: TranslationData, cache: Path | None) -> dict[str, Pairs]:
    splits = {"validation": config.validation_split, "test": config.test_split}
    return {name: open_pairs(config, split, config.limit_test, cache) for name, split in splits.items()}


def _text(tokenizer: Tokenizer, config: TranslationData, held_out: dict[str, Pairs]) -> Text:
    sentences = {name: all_sentences(pairs) for name, pairs in held_out.items()}
    return Text(
        tokenizer,
        config.lowercase,
        sources={name: sources for name, (sources, _) in sentences.items()},
        references={name: references for name, (_, references) in sentences.items()},
    )


def _evaluation(
    config: TranslationData, held_out: dict[str, Pairs], text: Text, rank: int, world: int
) -> dict[str, TranslationBatches]:
    """Every pair once over all ranks, in batches of similar length."""
    evaluation = {}
    for name, pairs in held_out.items():
        check_ranks(pairs.count, rank, world, name)
        encoded = encode_pairs(pairs, text)
        mine = group_by_length(encoded, np.arange(rank, pairs.count, world), max(config.tokens_per_batch // world, 1))
        evaluation[name] = TranslationBatches(encoded, mine, pairs.count, config.workers)
    return evaluation


@dataclass(frozen=True)
class Rows:
    """Token ids of many sentences in one compact array."""

    ids: npt.NDArray[Any]
    starts: Indices
    lengths: Indices

    def spans(self, rows: Indices) -> list[tuple[int, int]]:
        """Where the ids of some sentences begin, and how many they are."""
        return list(zip(self.starts[rows].tolist(), self.lengths[rows].tolist(), strict=True))

    def padded(self, rows: Indices, first: int | None, last: int | None) -> Tensor:
        """(rows, longest): every row after `first` and followed by `last`, where these are given, then padding."""
        lengths = self.lengths[rows]
        before, after = int(first is not None), int(last is not None)
        table = np.full((len(rows), int(lengths.max()) + before + after), PADDING_ID, dtype=np.int64)
        if first is not None:
            table[:, 0] = first
        inside = np.arange(table.shape[1] - before - after) < lengths[:, None]
        table[:, before : table.shape[1] - after][inside] = np.concatenate(
            [self.ids[start : start + length] for start, length in zip(self.starts[rows], lengths, strict=True)]
        )
        if last is not None:
            table[np.arange(len(rows)), before + lengths] = last
        return torch.from_numpy(table)


@dataclass(frozen=True)
class EncodedPairs:
    """Both sides of a split as token ids."""

    source: Rows
    target: Rows

    def batch(self, rows: Indices) -> Batch:
        """((source, target_in), target_out): the target after the start token, and followed by the end token."""
        inputs = (self.source.padded(rows, None, END_ID), self.target.padded(rows, START_ID, None))
        return inputs, self.target.padded(rows, None, END_ID)

    def fingerprint(self) -> str:
        """A checksum of all lengths and of some pairs."""
        sides = (self.source, self.target)
        some = sampled(len(self.source.lengths))
        rows = [side.ids[begin : begin + length] for side in sides for begin, length in side.spans(some)]
        return digest([*(side.lengths.tobytes() for side in sides), *(row.astype(np.int64).tobytes() for row in rows)])

    def fitting(self, max_length: int) -> Indices:
        """The pairs with 1 to `max_length` tokens on both sides."""
        sides = (self.source.lengths, self.target.lengths)
        return np.flatnonzero(np.logical_and.reduce([(side > 0) & (side <= max_length) for side in sides]))


@dataclass(frozen=True)
class TranslationBatches:
    """Batches of a split on one rank; with a seed their order changes every epoch."""

    pairs: EncodedPairs
    groups: list[Indices]
    samples: int
    workers: int = 0
    seed: int | None = None
    rank: int = 0
    world: int = 1

    @property
    def steps(self) -> int:
        return len(self.groups)

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        order = np.arange(self.steps) if self.seed is None else permutation(self.steps, self.seed, number)
        share = [self.groups[place][self.rank :: self.world] for place in order[skip:]]
        return prepared(self.pairs.batch, share, self.workers)


def training_groups(pairs: EncodedPairs, usable: Indices, tokens: int, seed: int, world: int) -> list[Indices]:
    """The global batches: pairs of similar length; the seed determines the order of sentences of the same length."""
    widest = int(pairs.target.lengths[usable].max()) + 1
    if widest > tokens:
        raise ValueError(
            f"tokens_per_batch = {tokens} is less than the longest training sentence of {widest} tokens; "
            "raise it, or lower max_length to leave long sentences out"
        )
    groups = group_by_length(pairs, usable[permutation(len(usable), seed, 0)], tokens)
    # The last batch holds the rest; with only a few rows it would still weigh as much as a whole batch.
    rest = groups[-1]
    if len(groups) > 1 and 2 * len(rest) * (int(pairs.target.lengths[rest].max()) + 1) < tokens:
        groups.pop()
    fewest = min(len(group) for group in groups)
    if fewest < world:
        raise ValueError(
            f"{world} processes, but a batch of tokens_per_batch = {tokens} holds only {fewest} of the longer sentences; "
            f"raise it to {widest * world} or start fewer processes"
        )
    return groups


def group_by_length(pairs: EncodedPairs, rows: Indices, tokens: int) -> list[Indices]:
    """Rows from the longest target to the shortest, cut wherever they would exceed `tokens` target tokens with padding."""
    order = np.lexsort((pairs.source.lengths[rows], pairs.target.lengths[rows]))[::-1]
    rows = rows[order]
    # lists: millions of single numbers are read faster from them than from arrays
    sources, targets = ((side.lengths[rows] + 1).tolist() for side in (pairs.source, pairs.target))
    groups: list[Indices] = []
    begin, widest_source = 0, 0
    for place, source in enumerate(sources):
        count, widest_source = place - begin + 1, max(widest_source, source)
        # descending: the first row of a batch is its widest target
        if count > 1 and (count * targets[begin] > tokens or count * widest_source > SOURCE_LIMIT * tokens):
            groups.append(rows[begin:place])
            begin, widest_source = place, source
    groups.append(rows[begin:])
    return groups


def encode_pairs(pairs: Pairs, text: Text) -> EncodedPairs:
    """Every pair as token ids, in the order of the data."""
    small = np.uint16 if text.vocabulary <= 2**16 else np.int32
    sides: tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]] = ([], [])
    lengths: tuple[list[int], list[int]] = ([], [])
    for piece in pairs.pieces():
        for side, counts, sentences in zip(sides, lengths, piece, strict=True):
            rows = text.encode_all(sentences)
            counts.extend(map(len, rows))
            side.append(np.fromiter((token for row in rows for token in row), dtype=small))
    return EncodedPairs(*(_rows(np.concatenate(side), counts) for side, counts in zip(sides, lengths, strict=True)))


def _rows(ids: npt.NDArray[Any], counts: list[int]) -> Rows:
    lengths = np.asarray(counts, dtype=np.int64)
    return Rows(ids, np.cumsum(lengths) - lengths, lengths)
