"""`autosparse bench infer`: hand-computed ratios, a real run of it, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autosparse.cli.bench import app
from autosparse.cli.bench_infer import fractions, numbers, pruned, zeros
from autosparse.deployment.engine_bench import COMPILED, EAGER, ORT, Timing, rows_of, take_turns

whole = typer.Typer()
whole.add_typer(app, name="bench")


def test_ratios_by_hand() -> None:
    timings = {EAGER: Timing(8.0, 9.0, 3), COMPILED: Timing(6.0, 6.0, 3), ORT: Timing(4.0, 5.0, 3), "ours": Timing(2.0, 3.0, 3)}
    rows = rows_of("net", 8, 1, timings)
    assert [row.over_onnxruntime for row in rows] == [0.5, 4 / 6, 1.0, 2.0]
    assert [row.over_torch for row in rows] == [0.75, 1.0, 1.5, 3.0]  # over the faster of torch's two
    assert rows[3].samples_per_second == 4000.0
    del timings[ORT]
    assert rows_of("net", 1, 1, timings)[0].over_onnxruntime is None


def test_contestants_take_turns() -> None:
    order: list[str] = []
    timings = take_turns({name: (lambda name=name: order.append(name)) for name in "ab"}, 1, 2)
    assert order == ["a", "a", "b", "b"] * 2
    assert timings["a"].calls == 2


def test_pruning_leaves_stem_and_classifier() -> None:
    model = pruned("resnet20", 0.9)
    assert 0.85 < zeros(model) < 0.91
    assert int((model.conv1.weight == 0).sum()) == int((model.fc.weight == 0).sum()) == 0


@pytest.mark.filterwarnings("ignore:deploy")
def test_it_measures_and_writes(tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    given = ["bench", "infer", "small_conv", "--sparsity", "0.9", "--batch", "2", "--threads", "1", "--rounds", "1"]
    done = CliRunner().invoke(whole, [*given, "--no-compile", "--layers", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "small_conv, batch 2, 1 thread" in done.output
    assert "baseline: onnxruntime dense" in done.output
    found = json.loads(out.read_text())
    assert {row["contestant"] for row in found["rows"]} >= {EAGER, "ours, 90% zeros"}
    assert all(row["milliseconds"] > 0 for row in found["rows"])
    assert any("conv6" in layer["name"] for table in found["layers"].values() for layer in table)
    again = CliRunner().invoke(whole, [*given, "--out", str(out)])
    assert "is there already" in str(again.exception)


@pytest.mark.parametrize("text", ["", "0", "1,x", "-1"])
def test_bad_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="whole numbers above zero"):
        numbers(text, "--batch")


@pytest.mark.parametrize("text", ["", "1", "-0.1", "ninety"])
def test_bad_fractions(text: str) -> None:
    with pytest.raises(ValueError, match="fractions of zeros from 0 to below 1"):
        fractions(text)


def test_unknown_model() -> None:
    done = CliRunner().invoke(whole, ["bench", "infer", "resnet51", "--no-compile"])
    assert "neither a built-in model" in str(done.exception)
