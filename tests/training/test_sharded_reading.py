"""Sharded checkpoints bring back what was saved, and run nothing that a stranger put into them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import CheckpointException, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from autosparse import SparsityWarning
from autosparse.training import sharded
from autosparse.training.processes import Processes
from autosparse.training.sharded_reading import PlainPlanner, PlainReader


class Hostile:
    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> Any:
        return (open, (self.place, "w"))


def trained(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    model(torch.randn(2, 3, 5, 5)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def save(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    model, optimizer = trained(seed)
    sharded.save(folder, model, optimizer, {"seed": seed}, Processes())
    return model.state_dict()


def load(folder: Path) -> tuple[dict[str, Any] | None, dict[str, torch.Tensor], float]:
    model, optimizer = trained(9)
    rest = sharded.load(folder, model, optimizer, Processes())
    return rest, model.state_dict(), optimizer.param_groups[0]["lr"]


def assert_is(folder: Path, seed: int, weights: dict[str, torch.Tensor]) -> None:
    rest, loaded, rate = load(folder)
    assert rest is not None
    assert rest["seed"] == seed
    assert rate == 0.1 + seed
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    assert_is(tmp_path, 1, save(tmp_path, 1))


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_an_emptied_part_is_told_and_the_checkpoint_before_taken(tmp_path: Path, name: str) -> None:
    weights = save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "last" / name).write_bytes(b"")
    with pytest.warns(SparsityWarning, match=rf"last is damaged: its part {name} has 0 bytes of \d+; going back to previous"):
        assert_is(tmp_path, 1, weights)


def test_a_hostile_metadata_file_is_not_executed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    rest = torch.load(tmp_path / "last" / "rest.pt", weights_only=True)
    content = pickle.dumps(Hostile(tmp_path / "owned"))
    (tmp_path / "last" / ".metadata").write_bytes(content)
    rest["parts"][".metadata"] = len(content)
    torch.save(rest, tmp_path / "last" / "rest.pt")
    with pytest.raises(ValueError, match=r"it names .*open, which is no data; nothing in it was executed"):
        load(tmp_path)
    assert not (tmp_path / "owned").exists()


def test_a_hostile_value_is_not_executed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    state_dict_saver.save(
        {"model": trained(2)[0].state_dict(), "optimizer": Hostile(tmp_path / "owned")}, checkpoint_id=tmp_path / "last"
    )
    state = {"model": trained(3)[0].state_dict(), "optimizer": 0.1}
    with pytest.raises(CheckpointException, match="optimizer holds more than plain values; nothing in it was executed"):
        state_dict_loader.load(state, storage_reader=PlainReader(tmp_path / "last"), planner=PlainPlanner())
    assert not (tmp_path / "owned").exists()


def test_parts_outside_the_folder_are_refused(tmp_path: Path) -> None:
    state_dict_saver.save({"rate": 0.1}, checkpoint_id=tmp_path / "c")
    metadata: Metadata = pickle.loads((tmp_path / "c" / ".metadata").read_bytes())
    metadata.storage_data[MetadataIndex("rate")].relative_path = "../secret"
    (tmp_path / "c" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match="names a place outside the checkpoint"):
        PlainReader(tmp_path / "c").read_metadata()


def test_only_data_may_be_named(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": io.BytesIO}))
    with pytest.raises(pickle.UnpicklingError, match=r"_io\.BytesIO"):
        PlainReader(tmp_path).read_metadata()
