"""Batches of images: the same for any number of ranks and workers, and from any step on."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from autosparse.data import Batch, Data, ImageData, open_data
from autosparse.data.augment import pad_crop_flip
from autosparse.data.batches import permutation, uniform

from .pictures import image_config

DIGITS = ImageData(source="digits", batch_size=12, channels=1, classes=10, augment="pad-crop-flip", limit=100, limit_test=50)


@pytest.fixture(params=["digits", "imagenet", "parquet"])
def config(request: pytest.FixtureRequest, jpeg_folder: Path, hub_copy: Path) -> ImageData:
    """In memory, decoded at every use with ImageNet's augmentation, and decoded once."""
    small = {"batch_size": 6, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    if request.param == "digits":
        return DIGITS
    if request.param == "imagenet":
        return image_config(source="folder", path=str(jpeg_folder), image_size=16, augment="resized-crop-flip", **small)
    return image_config(source="parquet", path=str(hub_copy), augment="pad-crop-flip", **small)


def same(ours: Batch, theirs: Batch) -> bool:
    return ours[0][0].equal(theirs[0][0]) and ours[1].equal(theirs[1])


def all_same(ours: list[Batch], theirs: list[Batch]) -> bool:
    return len(ours) == len(theirs) and all(same(*pair) for pair in zip(ours, theirs, strict=True))


def changed(config: ImageData, **fields: Any) -> ImageData:
    return ImageData(**{**config.model_dump(), **fields})


def rows(x: Tensor, y: Tensor) -> list[bytes]:
    return sorted(image.contiguous().numpy().tobytes() + bytes([int(label)]) for image, label in zip(x, y, strict=True))


def test_batches_are_those_of_the_contract(config: ImageData) -> None:
    data = open_data(config)
    batches = list(data.train.epoch(0))
    assert len(batches) == data.train.steps == data.train.samples // config.batch_size
    for (x,), y in batches:
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert len(x) == len(y) == config.batch_size
        assert x.is_contiguous()
    assert sum(len(y) for _, y in data.validation.epoch(0)) == data.validation.samples


def test_any_step_can_be_the_first(config: ImageData) -> None:
    data, resumed = open_data(config, seed=5), open_data(config, seed=5)
    for before, after in ((data.train, resumed.train), (data.validation, resumed.validation)):
        whole = list(before.epoch(3))
        for skip in range(len(whole) + 1):
            assert all_same(list(after.epoch(3, skip)), whole[skip:])


def test_seeds_and_epochs_change_the_batches(config: ImageData) -> None:
    firsts = [next(open_data(config, seed=seed).train.epoch(epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert not any(same(one, other) for number, one in enumerate(firsts) for other in firsts[:number])
    validation = [next(open_data(config, seed=seed).validation.epoch(epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert all(same(one, validation[0]) for one in validation)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_together_do_the_batch_of_one(config: ImageData, world: int) -> None:
    alone = open_data(config, seed=1)
    ranks = [open_data(config, seed=1, rank=rank, world=world) for rank in range(world)]
    assert {rank.train.steps for rank in ranks} == {alone.train.steps}
    for whole, *parts in zip(alone.train.epoch(2), *(rank.train.epoch(2) for rank in ranks), strict=True):
        assert {len(y) for _, y in parts} == {config.batch_size // world}
        assert same(whole, ((torch.cat([x for (x,), _ in parts]),), torch.cat([y for _, y in parts])))
    batches = [batch for rank in ranks for batch in rank.validation.epoch(0)]
    assert len(batches) == sum(rank.validation.steps for rank in ranks)
    assert rows(torch.cat([x for (x,), _ in batches]), torch.cat([y for _, y in batches])) == rows(
        torch.cat([x for (x,), _ in alone.validation.epoch(0)]), torch.cat([y for _, y in alone.validation.epoch(0)])
    )


def test_workers_change_nothing(config: ImageData) -> None:
    alone, helped = open_data(config), open_data(changed(config, workers=2))
    for name in ("train", "validation"):
        assert all_same(list(getattr(alone, name).epoch(1, 1)), list(getattr(helped, name).epoch(1, 1)))


def test_torchs_own_random_state_is_left_alone(config: ImageData) -> None:
    data = open_data(changed(config, workers=1))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    list(islice(data.train.epoch(0), 2))
    assert torch.get_rng_state().equal(before)


def test_a_batch_by_hand() -> None:
    """The order and the numbers of each sample give the batch, worked out from the images as they are."""
    data: Data = open_data(changed(DIGITS, mean=(0.3,), std=(0.4,)), seed=9)
    plain = open_data(changed(DIGITS, augment="none", batch_size=1), seed=9)
    order = permutation(100, 9, 4)
    images = torch.empty(100, 1, 8, 8)
    for index, ((x,), _) in zip(order, plain.train.epoch(4), strict=True):
        images[index] = x[0]
    for step, ((x,), _) in enumerate(data.train.epoch(4)):
        mine = order[step * 12 : step * 12 + 12]
        moved = pad_crop_flip(images[mine], uniform(mine, 3, 9, 4))
        torch.testing.assert_close(x, (moved - 0.3) / 0.4)


def test_a_sample_looks_the_same_in_any_company() -> None:
    """Another batch size moves a sample to another batch, with the same crop and flip."""
    few, many = open_data(changed(DIGITS, batch_size=5)), open_data(changed(DIGITS, batch_size=20))
    assert torch.cat([x for (x,), _ in few.train.epoch(0)]).equal(torch.cat([x for (x,), _ in many.train.epoch(0)]))
