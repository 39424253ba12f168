"""Replicas on CPUs exchange little by themselves, where the method allows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autosparse
from autosparse.training.processes import exchange_little


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [("rigl", "float32", [None]), ("autosparse", "bfloat16", [torch.bfloat16]), ("dst", "fp32", [])],
)
def test_gradients_of_pruned_weights_do_not_travel(name: str, precision: str, expected: list[torch.dtype | None]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    sp = autosparse.sparsify(model, autosparse.method(name), epochs=1, steps_per_epoch=200)
    runner = DistributedDataParallel(model)
    exchange_little(runner, sp, torch.device("cpu"), precision)
    assert [exchange.dtype for _, exchange in runner._comm_hooks] == expected


def test_one_process_and_dense_runs_are_left_alone() -> None:
    exchange_little(nn.Linear(2, 2), None, torch.device("cpu"), "float32")
