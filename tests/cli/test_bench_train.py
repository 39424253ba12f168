"""`autosparse bench train`: what it prints and writes; how fast anything is is not a test."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import autosparse
from autosparse import cli
from autosparse.bench.training import STEPS_PER_EPOCH, cycle_of, method_at

NETS = """
import torch
from torch import nn

def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 5))

def images():
    return nn.Conv2d(3, 4, 1)

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn, self.out = nn.Embedding(9, 8), nn.LSTM(8, 8), nn.Linear(8, 9)

    def forward(self, ids, scale):
        return {"scores": self.out(self.rnn(self.embedding(ids))[0]) * scale, "ids": ids}

def batch():
    return torch.randint(9, (5, 7)), torch.ones(1)

def nothing():
    return [1]
"""
FEW = ["--batch", "4", "--rounds", "2", "--threads", "1"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def run(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "train", *arguments])
    return stopped.value.code


def measured(*arguments: str) -> dict[str, Any]:
    assert run(*arguments, "--out", "found.json", "--force") == 0
    found: dict[str, Any] = json.loads(Path("found.json").read_text())
    return found


def test_all_sides_are_timed_in_turn_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured("small_conv", *FEW, "--sparsity", "0.5,0.9", "--no-memory", "--layers")
    dense, half, most = found["rows"]
    assert dense["side"] == "dense torch"
    assert dense["sparsity"] is None
    assert dense["faster_median"] == 1
    assert half["sparsity"] == pytest.approx(0.5, abs=0.1)
    assert most["sparsity"] == pytest.approx(0.9, abs=0.05)
    for row in found["rows"]:
        assert len(row["seconds"]) == 2
        assert row["least"] == min(row["seconds"]) > 0
        assert row["peak_bytes"] is None
        assert row["faster_least"] == pytest.approx(dense["least"] / row["least"])
    assert {layer["name"] for layer in found["layers"]["AutoSparse from 90 %"]} >= {"conv1", "fc"}
    out = capsys.readouterr().out
    for said in ("cpu: ", "baseline: plain dense torch", "small_conv, batch 4, 1 thread", "AutoSparse from 50 %", "16x1x3x3"):
        assert said in out


@pytest.mark.slow
def test_a_model_of_ones_own_with_memory() -> None:
    found = measured("bench_nets:wide", "--image", "3,2,2", *FEW, "--sparsity", "0.5", "--compute", "dense,auto")
    assert [row["side"] for row in found["rows"][1:]] == ["AutoSparse from 50 %, dense compute", "AutoSparse from 50 %"]
    assert all(row["peak_bytes"] > 50 * 2**20 for row in found["rows"])
    assert found["settings"]["image"] == [3, 2, 2]
    assert "counted, not skipped" in found["rows"][1]["compute"]


def test_masks_move_and_layers_can_be_left_out() -> None:
    found = measured("small_conv", *FEW, "--sparsity", "0.5", "--no-memory", "--exclude", "fc, conv1", "--alpha", "0.5")
    names = {layer["name"] for layer in found["layers"]["AutoSparse from 50 %"]}
    assert "conv2" in names
    assert not {"fc", "conv1"} & names


def test_a_model_of_any_input_and_another_method() -> None:
    given = ["bench_nets:Words", "--inputs", "bench_nets:batch", "--method", "set", "--sparsity", "0.5", "--no-memory"]
    found = measured(*given, "--rounds", "1", "--threads", "1")
    dense, sparse = found["rows"]
    assert sparse["side"] == "set at 50 %"
    assert sparse["sparsity"] == pytest.approx(0.5, abs=0.01)
    assert len(dense["seconds"]) == len(sparse["seconds"]) == 1
    assert {layer["name"] for layer in found["layers"]["set at 50 %"]} == {"rnn.weight_ih_l0", "rnn.weight_hh_l0", "out"}


def test_a_whole_update_cycle_is_timed() -> None:
    model = nn.Linear(4, 4)
    cycles = {"rigl": 100, "set": STEPS_PER_EPOCH, "random": 1, "str": 1}
    for name, steps in cycles.items():
        method = method_at(name, 0.5)
        sp = autosparse.sparsify(copy.deepcopy(model), method, epochs=1000, steps_per_epoch=STEPS_PER_EPOCH)
        assert cycle_of(sp) == steps
        assert sp.sparsity() == pytest.approx(0.5, abs=0.01)
    assert cycle_of(None) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "nosuch is not known; give a built-in model"),
        (["bench_nets:wide"], "--image 3,224,224"),
        (["bench_nets:images", "--image", "3,2,2"], "one row of class scores"),
        (["transformer", "--tokens", "100"], "multiple"),
        (["small_conv", "--sparsity", "1"], "--sparsity 1: give fractions"),
        (["small_conv", "--method", "cs"], "--method cs cannot start at a given sparsity"),
        (["bench_nets:Words", "--inputs", "bench_nets:nothing"], "must return a tensor or a tuple of tensors"),
        (["small_conv", "--compute", "quick"], "--compute quick is not known; give auto, dense, sparse"),
        (["small_conv", "--precision", "half"], "--precision half is not known; give float32 or bfloat16"),
        (["small_conv", "--out", "bench_nets.py"], "exists already"),
        (["."], "holds no finished run"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
