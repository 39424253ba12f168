"""Pictures from files, prepared as the validation images of a run are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from autosparse.common.packages import need
from autosparse.data.augment import centre_square
from autosparse.data.config import ImageData
from autosparse.data.encoded import MODES, picture_tensor


def read_pictures(paths: Sequence[Path], config: ImageData, height: int, width: int) -> Tensor:
    """The pictures of these files in one batch, of the run's size, colours and normalisation."""
    pixels = torch.stack([_read(path, config, height, width) for path in paths])
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (config.mean, config.std))
    return pixels.float().div_(255.0).sub_(mean).div_(std)


def _read(path: Path, config: ImageData, height: int, width: int) -> Tensor:
    image = need("PIL.Image", "reading pictures")
    if not path.is_file():
        raise FileNotFoundError(f"there is no picture {path}")
    try:
        with image.open(path) as opened:
            picture = opened.convert(MODES[config.channels])
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as a picture: {error}") from error
    if (picture.height, picture.width) != (height, width):
        square = height == width
        margin = config.augment == "resized-crop-flip"
        picture = centre_square(picture, height, margin) if square else picture.resize((width, height))
    return picture_tensor(picture)


def class_names(config: ImageData) -> list[str] | None:
    """The names of the classes, where folders give them and are there."""
    folder = Path(str(config.path)).expanduser() / config.train_split
    if config.source != "folder" or not folder.is_dir():
        return None
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    return names if len(names) == config.classes else None
