"""Sentence pairs from text files, parquet or the Hugging Face hub, read in pieces so that millions fit into memory."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from autosparse.data.config import TranslationData
from autosparse.data.image_tables import load_dataset

Piece = tuple[list[str], list[str]]
PIECE = 10_000


class Pairs(Protocol):
    """The sentence pairs of one split; `pieces` may be called as often as needed."""

    @property
    def count(self) -> int: ...

    def pieces(self) -> Iterator[Piece]:
        """Sources and targets, some thousands at a time, without white space at their ends."""


def open_pairs(config: TranslationData, split: str, limit: int | None = None, cache: Path | None = None) -> Pairs:
    """The pairs of a split, at most `limit` of them; if data is missing, the error names the files that were expected."""
    pairs: Pairs
    if config.source == "files":
        source, target = (_text_file(Path(str(config.path)), split, language) for language in config.languages)
        pairs = FilePairs(source, target, limit)
    else:
        dataset = _parquet(config, split, cache) if config.source == "parquet" else _hub(config, split, cache)
        pairs = ColumnPairs(dataset, config.languages, limit)
    if not pairs.count:
        raise ValueError(f"split {split!r} of {config.path or config.hub} holds no sentence pairs")
    return pairs


def all_sentences(pairs: Pairs) -> tuple[list[str], list[str]]:
    """Every source and every target of a split."""
    sources: list[str] = []
    targets: list[str] = []
    for source, target in pairs.pieces():
        sources += source
        targets += target
    return sources, targets


class FilePairs:
    """Two text files whose lines belong together."""

    def __init__(self, source: Path, target: Path, limit: int | None = None) -> None:
        self.paths = source, target
        counts = [sum(1 for _ in _lines(path)) for path in self.paths]
        for path, count in zip(self.paths, counts, strict=True):
            if not count:
                raise ValueError(f"{path} is empty")
        if counts[0] != counts[1]:
            raise ValueError(
                f"{source} has {counts[0]} lines but {target} has {counts[1]}; line by line they must belong together"
            )
        self.count = counts[0] if limit is None else min(limit, counts[0])

    def pieces(self) -> Iterator[Piece]:
        sources, targets = (islice(_lines(path), self.count) for path in self.paths)
        while piece := list(islice(sources, PIECE)):
            yield piece, list(islice(targets, PIECE))


class ColumnPairs:
    """A Hugging Face dataset with a translation column (WMT), or one column per language (Multi30k)."""

    def __init__(self, dataset: Any, languages: tuple[str, str], limit: int | None = None) -> None:
        self.languages = languages
        self.column = _translation_column(dataset, languages)
        self.dataset = dataset.select(range(limit)) if limit is not None and limit < len(dataset) else dataset
        self.count = len(self.dataset)

    def pieces(self) -> Iterator[Piece]:
        source, target = self.languages
        for rows in self.dataset.iter(batch_size=PIECE):
            if self.column is None:
                yield _stripped(rows[source]), _stripped(rows[target])
            else:
                both = rows[self.column]
                yield _stripped([row[source] for row in both]), _stripped([row[target] for row in both])


def _stripped(sentences: list[str | None]) -> list[str]:
    return [(sentence or "").strip() for sentence in sentences]


def _translation_column(dataset: Any, languages: tuple[str, str]) -> str | None:
    """The name of the column of {language: sentence}; None if every language has its own column."""
    both = set(languages)
    if both <= set(dataset.column_names):
        return None
    for name, feature in dataset.features.items():
        inside = getattr(feature, "languages", feature)
        if isinstance(inside, dict | list | tuple) and both <= {str(language) for language in inside}:
            return str(name)
    raise ValueError(
        f"no sentences in {' and '.join(languages)}: needed is a column of translations with both, or a column each; "
        f"the data has {', '.join(f'{name} ({feature})' for name, feature in dataset.features.items())}"
    )


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        # bytes first: text mode would also break lines at a lone carriage return, which some corpora carry inside sentences
        for number, line in enumerate(stream, 1):
            try:
                yield line.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path}, line {number}, is not UTF-8 text: {error.reason}; convert the file to UTF-8"
                ) from error


def _text_file(folder: Path, split: str, language: str) -> Path:
    candidates = [folder / f"{split}.{language}", folder / f"{split}.{language}.gz"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"no sentences found: looked for {' and '.join(map(str, candidates))}{_present(folder)}")


def _present(folder: Path) -> str:
    """What the folder holds instead, for the error message."""
    if not folder.is_dir():
        return f"; {folder} is not a folder"
    names = sorted(entry.name for entry in folder.iterdir())
    return f"; the folder holds {', '.join(names[:12]) + (', ...' if len(names) > 12 else '') if names else 'nothing'}"


def _parquet(config: TranslationData, split: str, cache: Path | None) -> Any:
    folder = Path(str(config.path))
    places = [folder, folder / "data"] if config.subset is None else [folder / config.subset, folder]
    patterns = [f"{split}.parquet", f"{split}-*.parquet", f"{split}/*.parquet"]
    for place in places:
        files = sorted(str(file) for pattern in patterns for file in place.glob(pattern))
        if files:
            return load_dataset("parquet", cache, "translation data", "text", data_files={split: files}, split=split)
    looked = ", ".join(str(place / pattern) for place in places for pattern in patterns)
    raise FileNotFoundError(f"no parquet files of split {split!r}: looked for {looked}{_present(folder)}")


def _hub(config: TranslationData, split: str, cache: Path | None) -> Any:
    name, subset = str(config.hub), config.subset
    if subset is not None and (Path(name) / subset).is_dir():
        # a local copy has one folder per configuration
        name, subset = str(Path(name) / subset), None
    return load_dataset(name, cache, "translation data", "text", name=subset, split=split)
