"""The paper's training augmentation of images, and the fixed crop for validation. Callers supply the random numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

Numbers = npt.NDArray[np.float64]
Box = tuple[int, int, int, int]

PADDING = 4
AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
DRAWS = {"none": 0, "pad-crop-flip": 3, "resized-crop-flip": 1 + 4 * TRIES}
"""Random numbers per sample, by augmentation."""

_MARGIN = 256 / 224


def pad_crop_flip(images: Tensor, numbers: Numbers) -> Tensor:
    """Every image of (samples, channels, height, width) shifted by up to 4 pixels over black, half of them mirrored."""
    height, width = images.shape[-2:]
    shift = torch.from_numpy((numbers[:, :2] * (2 * PADDING + 1)).astype(np.int64))
    padded = torch.nn.functional.pad(images, (PADDING,) * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    cropped = windows[torch.arange(len(images)), :, shift[:, 0], shift[:, 1]]
    mirrored = torch.from_numpy(numbers[:, 2] < 0.5)
    return torch.where(mirrored[:, None, None, None], cropped.flip(-1), cropped)


def resized_crop_flip(image: Image, side: int, numbers: Numbers) -> Image:
    """A random part of the image, brought to a square, mirrored half of the time."""
    from PIL.Image import Resampling, Transpose

    part = image.crop(random_box(image.width, image.height, numbers[1:])).resize((side, side), Resampling.BILINEAR)
    return part.transpose(Transpose.FLIP_LEFT_RIGHT) if numbers[0] < 0.5 else part


def random_box(width: int, height: int, numbers: Numbers) -> Box:
    """(left, top, right, bottom) of 8 to 100 % of the area and a side ratio of 3/4 to 4/3."""
    for area_at, ratio_at, x_at, y_at in numbers.reshape(TRIES, 4).tolist():
        area = width * height * (AREA[0] + area_at * (AREA[1] - AREA[0]))
        ratio = RATIO[0] * (RATIO[1] / RATIO[0]) ** ratio_at
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(x_at * (width - wide + 1)), int(y_at * (height - high + 1))
            return left, top, left + wide, top + high
    # No try fits into such a long image: take the largest central part with an allowed ratio.
    wide = max(1, min(width, round(height * RATIO[1])))
    high = max(1, min(height, round(width / RATIO[0])))
    return _middle(width, height, wide, high)


def centre_square(image: Image, side: int, margin: bool) -> Image:
    """The middle of the image as a square; with a margin around it as in ImageNet's validation (256 to 224)."""
    from PIL.Image import Resampling

    if not margin and image.size == (side, side):
        return image
    shorter = round(side * _MARGIN) if margin else side
    scale = shorter / min(image.size)
    wide, high = max(shorter, int(image.width * scale)), max(shorter, int(image.height * scale))
    return image.resize((wide, high), Resampling.BILINEAR).crop(_middle(wide, high, side, side))


def _middle(width: int, height: int, wide: int, high: int) -> Box:
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high
