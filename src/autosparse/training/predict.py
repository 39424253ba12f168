"""What a run's model sees in pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from autosparse.data import ImageData
from autosparse.data.pictures import class_names, read_pictures
from autosparse.training.deployed import deploy_finished
from autosparse.training.finished import Finished, open_finished

BATCH = 32


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of one picture, with their probabilities."""

    file: str
    classes: list[int]
    names: list[str]
    probabilities: list[float]


def predict(folder: Path, files: Sequence[Path], *, top: int = 1, precision: str | None = None) -> Iterator[Prediction]:
    """The classes of pictures by a finished run's plain model, or with a precision by its deployed one."""
    finished = open_finished(folder)
    data = finished.recipe.data
    if not isinstance(data, ImageData):
        raise ValueError(f"the run in {folder} translates sentences: predict is for pictures")
    height, width = image_size(finished)
    names = class_names(data)
    first = read_pictures(files[:1], data, height, width)
    model: nn.Module = finished.model if precision is None else deploy_finished(finished, (first,), precision, 1)
    for begin in range(0, len(files), BATCH):
        paths = files[begin : begin + BATCH]
        with torch.no_grad():
            scores = model(read_pictures(paths, data, height, width)).softmax(-1)
        values, classes = scores.topk(min(top, scores.shape[-1]))
        for path, chances, numbers in zip(paths, values.tolist(), classes.tolist(), strict=True):
            labels = [names[number] if names else str(number) for number in numbers]
            yield Prediction(str(path), numbers, labels, chances)


def image_size(finished: Finished) -> tuple[int, int]:
    """Height and width of the images that the run was trained on, as its run.json notes them."""
    facts = finished.folder.read_info().get("data") or {}
    noted = re.fullmatch(r"\d+ x (\d+) x (\d+)", str(facts.get("image", "")))
    if noted is not None:
        return int(noted[1]), int(noted[2])
    data = finished.recipe.data
    side = data.image_size if isinstance(data, ImageData) else None
    if side is None:
        raise ValueError(f"{finished.folder.path} does not say how large its images are: give data.image_size in its recipe")
    return side, side
