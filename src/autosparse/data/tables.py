"""Rows of a CSV file: columns of numbers and words with a target column, or texts with their labels."""

from __future__ import annotations

import csv
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from autosparse.common.warnings import warn
from autosparse.data.batches import Batch, Data, SampleBatches, check_splits, permutation
from autosparse.data.config import TableData, TextData
from autosparse.data.fingerprint import digest
from autosparse.data.image_tables import HELD_OUT, load_dataset

MOST_WORDS = 100  # different values of a column of words
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
Rows = list[dict[str, str]]


@dataclass(frozen=True)
class RowBatches(SampleBatches):
    """Rows of one table."""

    inputs: Tensor
    labels: Tensor

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        for indices in self.share(number, skip):
            rows = torch.from_numpy(indices)
            yield (self.inputs[rows],), self.labels[rows]


def open_rows(config: TableData | TextData, *, seed: int, rank: int, world: int, cache: Path | None) -> Data:
    """The batches of a CSV file, or of texts on the hub."""
    train, held_out = _splits(config, cache)
    target = config.target if isinstance(config, TableData) else config.label_column
    classes = sorted({row[target] for row in train}, key=_order)
    if len(classes) < 2:
        raise ValueError(f"column {target} holds {len(classes)} class among the training rows; at least 2 are needed")
    labels = [_labels(rows, target, classes) for rows in (train, held_out)]
    if isinstance(config, TableData):
        columns = Columns(train, target)
        inputs = [columns.encoded(rows) for rows in (train, held_out)]
        facts: dict[str, object] = {"columns": len(columns.kinds), "in_features": columns.width}
    else:
        inputs = [texts([row[config.text_column] for row in rows], config) for rows in (train, held_out)]
        facts = {"vocabulary": config.vocabulary, "words per text": config.max_length}
    check_splits(len(train), len(held_out), config.batch_size, rank, world)
    training, validation = (
        RowBatches(len(y), config.batch_size, is_training, seed, rank, world, x, y)
        for x, y, is_training in zip(inputs, labels, (True, False), strict=True)
    )
    facts = {
        "source": config.path or getattr(config, "hub", None),
        "training samples": len(train),
        "validation samples": len(held_out),
        "classes": len(classes),
        "classes from": "the labels",
        "class names": classes[:20],
        **facts,
    }
    marks = [digest([x.numpy().tobytes(), y.numpy().tobytes()]) for x, y in zip(inputs, labels, strict=True)]
    return Data(training, validation, validation, facts, fingerprint={"training": marks[0], "validation": marks[1]})


class Columns:
    """How the columns of a table become numbers: standardised, or one of the training rows' words."""

    def __init__(self, rows: Rows, target: str) -> None:
        self.kinds: dict[str, tuple[float, float] | list[str]] = {}
        for name in rows[0]:
            if name == target:
                continue
            values = [row[name] for row in rows if row[name].lower() not in MISSING]
            try:
                numbers = np.array([float(value) for value in values])
            except ValueError:
                words = sorted(Counter(values))
                if len(words) > MOST_WORDS:
                    raise ValueError(
                        f"column {name} holds {len(words):,} different words, such as {words[0]!r}; up to {MOST_WORDS} become "
                        "inputs: remove the column, or use kind: text for sentences"
                    ) from None
                self.kinds[name] = words
            else:
                if not np.isfinite(numbers).all():
                    raise ValueError(f"column {name} holds an infinite number")
                mean, deviation = (float(numbers.mean()), float(numbers.std())) if len(numbers) else (0.0, 0.0)
                self.kinds[name] = mean, deviation or 1.0
        if not self.kinds:
            raise ValueError(f"there is no column besides the target {target}")

    @property
    def width(self) -> int:
        return sum(len(kind) if isinstance(kind, list) else 1 for kind in self.kinds.values())

    def encoded(self, rows: Rows) -> Tensor:
        """float32 (rows, width); what is missing counts as the mean, an unknown word as none."""
        parts = []
        for name, kind in self.kinds.items():
            values = [row[name] for row in rows]
            if isinstance(kind, list):
                places = {word: place for place, word in enumerate(kind)}
                part = np.zeros((len(rows), len(kind)), dtype=np.float32)
                for number, value in enumerate(values):
                    if value in places:
                        part[number, places[value]] = 1.0
            else:
                mean, deviation = kind
                numbers = np.array([self._number(name, value, mean) for value in values])
                part = ((numbers - mean) / deviation).astype(np.float32)[:, None]
            parts.append(part)
        return torch.from_numpy(np.concatenate(parts, axis=1))

    @staticmethod
    def _number(name: str, value: str, mean: float) -> float:
        if value.lower() in MISSING:
            return mean
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"column {name} holds numbers in training, but {value!r} among the other rows") from None
        if not math.isfinite(number):
            raise ValueError(f"column {name} holds {value!r}: not a finite number")
        return number


def texts(sentences: Sequence[str], config: TextData) -> Tensor:
    """int64 (texts, max_length): words in small letters as hashes below `vocabulary`, 0 behind the last one."""
    result = torch.zeros(len(sentences), config.max_length, dtype=torch.int64)
    for place, sentence in enumerate(sentences):
        words = re.findall(r"\w+|[^\w\s]", sentence.lower())[: config.max_length]
        ids = [1 + zlib.crc32(word.encode()) % (config.vocabulary - 1) for word in words]
        result[place, : len(ids)] = torch.tensor(ids or [1], dtype=torch.int64)[: config.max_length]
    return result


def _splits(config: TableData | TextData, cache: Path | None) -> tuple[Rows, Rows]:
    """Training and held-out rows; a file without a partner is split here, and that is said."""
    if isinstance(config, TextData) and config.source == "hub":
        train, held_out = _from_hub(config, cache)
    else:
        train, held_out = _from_files(Path(str(config.path)).expanduser(), config)
    if held_out is None:
        order = permutation(len(train), 0, 0)
        kept = max(1, round(config.held_out * len(train)))
        if len(train) < 2:
            raise ValueError(f"{config.path} holds {len(train)} rows; training and validation need one each")
        held_out = [train[place] for place in sorted(order[:kept])]
        train = [train[place] for place in sorted(order[kept:])]
        warn(f"{config.path} has no rows set aside to validate on: {kept:,} of {kept + len(train):,} are held out at random")
    limits = (config.limit, config.limit_test)
    train, held_out = (rows[:limit] for rows, limit in zip((train, held_out), limits, strict=True))
    return train, held_out


def _from_files(path: Path, config: TableData | TextData) -> tuple[Rows, Rows | None]:
    if path.is_dir():
        training = path / "train.csv"
        if not training.is_file():
            raise FileNotFoundError(f"there is no train.csv in {path}; give that file, or the path of a CSV file")
        others = [path / f"{name}.csv" for name in HELD_OUT]
        held_out = next((other for other in others if other.is_file()), None)
        return read_csv(training, config), None if held_out is None else read_csv(held_out, config)
    if not path.is_file():
        raise FileNotFoundError(f"data.path = {config.path} does not exist; give a CSV file, or a folder with train.csv")
    return read_csv(path, config), None


def read_csv(path: Path, config: TableData | TextData) -> Rows:
    """The rows of a CSV file with a header, by column name."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            sample = file.read(8192)
            file.seek(0)
            try:
                dialect: type[csv.Dialect] | str = csv.Sniffer().sniff(sample.splitlines()[0] if sample else "", ",;\t|")
            except csv.Error:  # a single column
                dialect = "excel"
            lines = [line for line in csv.reader(file, dialect) if line]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 (byte {error.start}): save it as UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}") from error
    if len(lines) < 2:
        raise ValueError(f"{path} holds {len(lines)} lines; a header and at least one row are needed")
    names = [name.strip() for name in lines[0]]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has two columns of the name {twice[0]!r}")
    needed = [config.target] if isinstance(config, TableData) else [config.text_column, config.label_column]
    absent = [name for name in needed if name not in names]
    if absent:
        raise ValueError(f"{path} has no column {absent[0]!r}; its columns are {', '.join(names)}")
    uneven = next((place for place, line in enumerate(lines, start=1) if len(line) != len(names)), None)
    if uneven is not None:
        raise ValueError(f"{path}, row {uneven}: {len(lines[uneven - 1])} values for {len(names)} columns")
    return [dict(zip(names, (value.strip() for value in line), strict=True)) for line in lines[1:]]


def _from_hub(config: TextData, cache: Path | None) -> tuple[Rows, Rows | None]:
    splits = load_dataset(str(config.hub), cache, "text classification", name=config.subset)
    if config.train_split not in splits:
        raise ValueError(f"{config.hub} has no split {config.train_split}; it has {', '.join(splits)}")
    held_out = next((name for name in HELD_OUT if name in splits), None)
    chosen = [config.train_split] + ([held_out] if held_out else [])
    tables = []
    for split in chosen:
        columns = splits[split].column_names
        for name in (config.text_column, config.label_column):
            if name not in columns:
                raise ValueError(f"{config.hub} has no column {name!r}; its columns are {', '.join(columns)}")
        pairs = zip(splits[split][config.text_column], splits[split][config.label_column], strict=True)
        tables.append([{config.text_column: str(text), config.label_column: str(label)} for text, label in pairs])
    return tables[0], tables[1] if held_out else None


def _labels(rows: Rows, target: str, classes: list[str]) -> Tensor:
    places = {name: place for place, name in enumerate(classes)}
    unknown = sorted({row[target] for row in rows} - set(classes))
    if unknown:
        raise ValueError(f"column {target}: {unknown[0]!r} occurs among the held-out rows, but not in training")
    return torch.tensor([places[row[target]] for row in rows], dtype=torch.int64)


def _order(value: str) -> tuple[int, float, str]:
    """Numbers by size, then words by letter."""
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value
