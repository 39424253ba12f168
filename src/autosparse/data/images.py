"""Batches of labelled images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from autosparse.data.augment import DRAWS, pad_crop_flip
from autosparse.data.batches import Batch, Data, Indices, SampleBatches, check_splits, uniform
from autosparse.data.config import Augmentation, ImageData
from autosparse.data.sources import Images, class_count, open_images
from autosparse.data.workers import prepared


@dataclass(frozen=True)
class ImagePreparation:
    """Makes batches of one epoch."""

    images: Images
    augment: Augmentation
    mean: Tensor
    std: Tensor
    seed: int
    number: int

    def batch(self, indices: Indices) -> Batch:
        numbers = uniform(indices, DRAWS[self.augment], self.seed, self.number)
        if self.augment == "resized-crop-flip":
            pixels = self.images.random_crops(indices, numbers)
        else:
            pixels = self.images.pixels(indices)
            if self.augment == "pad-crop-flip":
                pixels = pad_crop_flip(pixels, numbers)
        x = pixels.float().div_(self.images.scale).sub_(self.mean).div_(self.std)
        return (x,), self.images.labels[torch.from_numpy(indices)]


@dataclass(frozen=True)
class ImageBatches(SampleBatches):
    """Augmented for training, otherwise unchanged."""

    images: Images
    config: ImageData

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.config.mean, self.config.std))
        augment: Augmentation = self.config.augment if self.training else "none"
        prepare = ImagePreparation(self.images, augment, mean, std, self.seed, number)
        return prepared(prepare.batch, self.share(number, skip), self.config.workers)


def open_image_data(config: ImageData, *, seed: int, rank: int, world: int, cache: Path | None) -> Data:
    """The batches of images that the `data:` block describes."""
    train, held_out = open_images(config, cache)
    check_splits(len(train.labels), len(held_out.labels), config.batch_size, rank, world)
    channels, height, width = train.shape
    facts = {
        "source": config.path or config.hub or config.source,
        "training samples": len(train.labels),
        "validation samples": len(held_out.labels),
        "classes": config.classes or class_count((train, held_out)),
        **({} if config.classes else {"classes from": "the labels"}),
        "image": f"{channels} x {height} x {width}",
    }
    training, validation = (
        ImageBatches(len(images.labels), config.batch_size, is_training, seed, rank, world, images, config)
        for images, is_training in ((train, True), (held_out, False))
    )
    fingerprint = {"training": train.fingerprint(), "validation": held_out.fingerprint()}
    return Data(training, validation, validation, facts, fingerprint=fingerprint)
