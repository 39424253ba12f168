"""Batch norms in several processes: shared where the recipe asks for it and torch can, and told otherwise."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from autosparse import SparsityWarning
from autosparse.recipes.loading import load_recipe
from autosparse.training.batch_norms import check_device, prepared
from autosparse.training.processes import Processes
from autosparse.training.run import train

TWO = Processes(0, 2, 0)


def net(norm: bool = True) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4) if norm else nn.ReLU())


def test_shared_norms_are_refused_on_a_cpu_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.sync_batch_norm shares statistics between GPUs, and this run trains on cpu"):
        train(load_recipe("digits", ["train.sync_batch_norm=true", "train.device=cpu"]), tmp_path / "r", quiet=True)
    assert not (tmp_path / "r").exists()


def test_shared_norms_keep_their_names() -> None:
    recipe, plain = load_recipe("digits", ["train.sync_batch_norm=true"]), net()
    check_device(recipe, torch.device("cuda"))
    names = list(plain.state_dict())
    shared = prepared(plain, recipe, TWO)
    assert isinstance(shared[1], nn.SyncBatchNorm)  # type: ignore[index]
    assert list(shared.state_dict()) == names


def test_statistics_of_each_process_are_told_at_the_start() -> None:
    with pytest.warns(SparsityWarning, match="2 processes train a network with batch norms: each normalises with"):
        prepared(net(), load_recipe("digits"), TWO)


@pytest.mark.parametrize(("processes", "norm"), [(TWO, False), (Processes(1, 2, 1), True), (Processes(), True)])
def test_nothing_is_said_where_nothing_differs_or_another_rank_says_it(processes: Processes, norm: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared(net(norm), load_recipe("digits"), processes)
