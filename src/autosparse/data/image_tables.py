"""Tables of images from Hugging Face `datasets`: which files, splits and columns hold what."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from autosparse.common.packages import need
from autosparse.common.warnings import warn
from autosparse.data.config import ImageData

HELD_OUT = ("validation", "val", "valid", "test")
"""Splits to validate on; the first that exists is used."""

IMAGE_NAMES = ("image", "img", "images", "picture", "pixel_values")
LABEL_NAMES = ("label", "labels", "fine_label", "class", "target", "y")
_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
HELD_OUT_SHARE = 0.1
_PURPOSE = "image data"

Tables = list[tuple[str, Any]]


def open_tables(config: ImageData, cache: Path | None) -> Tables:
    """[(name, table) to train on, (name, table) to validate on]."""
    if config.source == "hub":
        return _hub(config, cache)
    root = Path(str(config.path)).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"data.path = {config.path} is not a folder; source: {config.source} needs one with its splits")
    return _folder(root, config) if config.source == "folder" else _parquet(root, config, cache)


def _splits(config: ImageData) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the split to train on and of that to validate on; the first that exists is used."""
    return (config.train_split,), (config.test_split,) if config.test_split else HELD_OUT


def image_column(table: Any, chosen: str | None) -> str:
    """The column of the images: the chosen one, or the one that looks like it."""
    datasets = need("datasets", _PURPOSE)
    columns = list(table.features)
    if chosen is not None:
        return _existing(chosen, columns, "image_column")
    typed = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image) or _bytes_like(kind)]
    return _one(typed, IMAGE_NAMES, columns, "image_column")


def label_column(table: Any, chosen: str | None, classes: int | None) -> str:
    """The column of the labels; among several class columns the one with this number of classes."""
    datasets = need("datasets", _PURPOSE)
    kinds = table.features
    whole = [name for name, kind in kinds.items() if isinstance(kind, datasets.ClassLabel) or _is_integer(kind)]
    if chosen is not None:
        if _existing(chosen, list(kinds), "label_column") not in whole:
            raise ValueError(f"data.label_column: {chosen} holds {kinds[chosen]}; labels are whole numbers from 0")
        return chosen
    named = [name for name in whole if isinstance(kinds[name], datasets.ClassLabel)]
    fitting = [name for name in named if kinds[name].num_classes == classes]
    return _one(fitting or named or whole, LABEL_NAMES, list(kinds), "label_column")


def _folder(root: Path, config: ImageData) -> Tables:
    """train/CLASS/*.jpg; we list the files ourselves, since `datasets` is slow to look up a million of them one by one."""
    if not config.test_split and not any((root / name).is_dir() for name in HELD_OUT):
        return _split_here(root, config.train_split)
    names = [_first(root, names) for names in _splits(config)]
    classes = sorted(entry.name for entry in (root / names[0]).iterdir() if entry.is_dir())
    if len(classes) < 2:
        raise ValueError(
            f"{root / names[0]} holds {len(classes)} class folders; put the images of every class in a separate folder"
        )
    return [(name, _table(*_listed(root / name, classes), classes)) for name in names]


def _split_here(root: Path, train_split: str) -> Tables:
    """A folder without images to validate on: of every class each tenth image is held out, and that is said."""
    place = root / train_split if (root / train_split).is_dir() else root
    classes = sorted(entry.name for entry in place.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(classes) < 2:
        raise FileNotFoundError(
            f"no folder {train_split} in {root}, and {len(classes)} class folders; source: folder needs train/CLASS/*.jpg and "
            "val/CLASS/*.jpg, or CLASS/*.jpg alone"
        )
    paths, labels = _listed(place, classes)
    numbers = np.array(labels)
    held_out = np.zeros(len(paths), dtype=bool)
    for label in range(len(classes)):
        members = np.flatnonzero(numbers == label)
        chosen = np.random.default_rng([0, label]).permutation(members)[: max(1, round(HELD_OUT_SHARE * len(members)))]
        held_out[chosen] = len(members) > 1
    if not held_out.any():
        raise ValueError(f"{place} holds {len(paths)} images of {len(classes)} classes: too few to hold any out")
    warn(
        f"{root} has no images set aside to validate on: {held_out.sum():,} of {len(paths):,} are held out, a tenth of each of "
        f"{len(classes)} classes"
    )
    parts = ((train_split, np.flatnonzero(~held_out)), ("held out", np.flatnonzero(held_out)))
    return [(name, _table([paths[place] for place in places], numbers[places].tolist(), classes)) for name, places in parts]


def _table(paths: list[str], labels: list[int], classes: list[str]) -> Any:
    datasets = need("datasets", _PURPOSE)
    kinds = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=classes)})
    return datasets.Dataset.from_dict({"image": paths, "label": labels}, features=kinds)


def _listed(folder: Path, classes: list[str]) -> tuple[list[str], list[int]]:
    """Files and class numbers, class by class in the order of names."""
    unknown = sorted({entry.name for entry in folder.iterdir() if entry.is_dir()} - set(classes))
    if unknown:
        raise ValueError(f"{folder} holds classes that the training images lack: {', '.join(unknown[:5])}")
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        for place, folders, files in os.walk(folder / name):
            folders.sort()
            found = sorted(file for file in files if file.lower().endswith(_ENDINGS))
            paths += (os.path.join(place, file) for file in found)
            labels += [label] * len(found)
    if not paths:
        raise FileNotFoundError(f"no images in {folder}: looked for CLASS/*{', CLASS/*'.join(_ENDINGS[:3])} and the like")
    return paths, labels


def _first(root: Path, names: tuple[str, ...]) -> str:
    for name in names:
        if (root / name).is_dir():
            return name
    raise FileNotFoundError(
        f"no folder {' or '.join(names)} in {root}; source: folder needs train/CLASS/*.jpg and val/CLASS/*.jpg"
    )


def _parquet(root: Path, config: ImageData, cache: Path | None) -> Tables:
    found = [_parquet_files(root, names) for names in _splits(config)]
    return [(split, load_dataset("parquet", cache, _PURPOSE, data_files=files, split="train")) for split, files in found]


def _parquet_files(root: Path, names: tuple[str, ...]) -> tuple[str, list[str]]:
    everything = sorted(root.rglob("*.parquet"))
    for name in names:
        found = [path for path in everything if _belongs(path, name, root)]
        if found:
            return name, [str(path) for path in found]
    looked_for = ", ".join(f"{name}*.parquet" for name in names)
    raise FileNotFoundError(
        f"no {looked_for} in {root}; there are: {', '.join(p.name for p in everything[:5]) or 'no parquet files'}"
    )


def _belongs(path: Path, split: str, root: Path) -> bool:
    """train.parquet, train-00000-of-00002.parquet or train/0000.parquet, but not training_notes.parquet."""
    rest = path.stem.removeprefix(split)
    named = rest != path.stem and not rest[:1].isalpha()
    return named or split in path.relative_to(root).parts[:-1]


def _hub(config: ImageData, cache: Path | None) -> Tables:
    hub = str(config.hub)
    local = Path(hub).expanduser()
    if (local / "dataset_dict.json").is_file():
        splits = need("datasets", _PURPOSE).load_from_disk(str(local))
    else:
        splits = load_dataset(str(local) if local.is_dir() else hub, cache, _PURPOSE, name=config.subset)
    tables = []
    for names in _splits(config):
        name = next((name for name in names if name in splits), None)
        if name is None:
            raise ValueError(f"{hub} has no split {' or '.join(names)}; it has {', '.join(splits)}")
        tables.append((name, splits[name]))
    return tables


def load_dataset(place: str, cache: Path | None, purpose: str, extra: str = "data", **arguments: Any) -> Any:
    """`datasets.load_dataset` without progress bars in logs and with errors of one line."""
    datasets = need("datasets", purpose, extra)
    hide = not sys.stderr.isatty() and not datasets.are_progress_bars_disabled()  # a log needs no bars
    if hide:
        datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(place, cache_dir=str(cache) if cache else None, **arguments)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error.__cause__ or error).strip().split("\n")[0]
        raise OSError(f"cannot open {arguments.get('data_files', place)} with datasets: {reason}") from error
    finally:
        if hide:
            datasets.enable_progress_bars()


def _one(candidates: list[str], usual: tuple[str, ...], columns: list[str], field: str) -> str:
    for name in usual:
        if name in candidates:
            return name
    if len(candidates) == 1:
        return candidates[0]
    many = f"{', '.join(candidates)} all fit" if candidates else "none fits"
    raise ValueError(f"which column is it? {many} of {', '.join(columns)}; set data.{field}")


def _existing(name: str, columns: list[str], field: str) -> str:
    if name not in columns:
        raise ValueError(f"data.{field}: {name} does not exist; the columns are {', '.join(columns)}")
    return name


def _bytes_like(kind: Any) -> bool:
    """Encoded images without the hub's description: bytes, or a struct of bytes and path."""
    if isinstance(kind, dict):
        return "bytes" in kind
    return getattr(kind, "dtype", None) in ("binary", "large_binary")


def _is_integer(kind: Any) -> bool:
    return str(getattr(kind, "dtype", "")).startswith(("int", "uint"))
