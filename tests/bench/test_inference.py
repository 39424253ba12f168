"""`autosparse bench infer`: hand-computed ratios, a real run of it, and its refusals."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from autosparse import cli, models
from autosparse.bench import engines
from autosparse.bench import inference as bench
from autosparse.bench.inference import COMPILED, EAGER, ORT, Timing, pruned, rows_of, time_in_turn, zeros
from autosparse.cli.bench import app
from autosparse.cli.options import fractions, whole_numbers
from autosparse.kernels import library

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
    timings = time_in_turn({name: (lambda name=name: order.append(name)) for name in "ab"}, 1, 2)
    assert order == ["a", "a", "b", "b"] * 2
    assert timings["a"].calls == 2


def test_pruning_leaves_stem_and_classifier() -> None:
    model = pruned("resnet20", 0.9)
    assert 0.85 < zeros(model) < 0.91
    assert int((model.conv1.weight == 0).sum()) == int((model.fc.weight == 0).sum()) == 0


def test_rows_share_their_zeros() -> None:
    model = pruned("resnet20", 0.9, rows=2)
    assert 0.85 < zeros(model) < 0.91
    masks = [layer.weight != 0 for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d) and name != "conv1"]
    assert all(torch.equal(mask[::2], mask[1::2]) for mask in masks)
    assert not all(torch.equal(mask[::4], mask[2::4]) for mask in masks)


@pytest.mark.filterwarnings("ignore:deploy")
def test_the_command_shares_zeros() -> None:
    given = ["bench", "infer", "small_conv", "--sparsity", "0.9", "--batch", "1", "--threads", "1", "--rounds", "1"]
    done = CliRunner().invoke(whole, [*given, "--no-compile", "--rows-per-pattern", "2"])
    assert done.exit_code == 0, done.output
    assert "ours, 90% zeros shared by 2 rows" in done.output


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
    named = any("conv6" in layer["name"] for table in found["layers"].values() for layer in table)
    assert named == (library.why_not() is None), "only the engine's kernels can be timed layer by layer"
    again = CliRunner().invoke(whole, [*given, "--out", str(out)])
    assert "exists already" in str(again.exception)


@pytest.mark.filterwarnings("ignore:deploy")
def test_what_is_measured_of_a_run_stands_in_its_model_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.chdir(tmp_path)
    settings = ["train.epochs=1", "train.dense_beside=false", "train.threads=1", "model.arguments.width=8"]
    everything = ["train", "--quiet", "--no-report", "--out", "runs/mine"]
    for setting in settings:
        everything += ["--set", setting]
    measure = ["bench", "infer", "runs/mine", "--batch", "1,2", "--threads", "1", "--rounds", "1", "--no-compile"]
    for arguments in (everything, measure, ["export", "runs/mine", "--format", "hub"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == 0
    rows = json.loads(Path("runs/mine/bench.json").read_text())["rows"]
    assert {(row["model"], row["batch"]) for row in rows} == {("mine", 1), ("mine", 2)}
    card = Path("runs/mine/export/hub/README.md").read_text()
    assert "| model | contestant | batch | threads | milliseconds |" in card
    for row in rows:
        assert f"| mine | {row['contestant']} | {row['batch']} | 1 | {row['milliseconds']:.4g} |" in card
    assert "clock processor time on one thread" in card
    assert "Not measured" not in card
    with pytest.raises(SystemExit) as stopped:  # before anything is measured again
        cli.main(measure)
    assert stopped.value.code != 0


@pytest.mark.filterwarnings("ignore:deploy")
def test_translations_are_measured_with_and_without_a_sparse_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(models.transformer, 1200, 16, 2, 32, 1, 1)
    monkeypatch.setattr(models, "build", lambda name: small() if name == "transformer" else None)
    monkeypatch.setattr(bench, "example", lambda name, batch, inputs, model: (torch.randint(3, 1200, (batch, 5)),))
    given = ["bench", "infer", "transformer", "--sparsity", "0.9", "--batch", "1", "--threads", "1", "--rounds", "1"]
    done = CliRunner().invoke(whole, [*given, "--layers", "--out", str(tmp_path / "speed.json")])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert {row["contestant"] for row in rows} >= {EAGER, "ours, 90% zeros", "ours, 90% zeros, vocabulary too"}
    assert "writes other tokens" not in done.output
    assert "ours, 90% zeros: vocabulary layer dense" in done.output
    assert ("decoder.0.attention.query" in done.output) == (library.why_not() is None)


@pytest.mark.parametrize("text", ["", "0", "1,x", "-1"])
def test_bad_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="whole numbers above zero"):
        whole_numbers(text, "--batch")


@pytest.mark.parametrize("text", ["", "1", "-0.1", "ninety"])
def test_bad_fractions(text: str) -> None:
    with pytest.raises(ValueError, match="fractions of zeros from 0 to below 1"):
        fractions(text)


def test_unknown_model() -> None:
    done = CliRunner().invoke(whole, ["bench", "infer", "resnet51", "--no-compile"])
    assert "neither a built-in model" in str(done.exception)


@pytest.mark.filterwarnings("ignore:deploy")
def test_a_model_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_nets.py").write_text(
        "import torch\n\n\ndef build():\n    return torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.ReLU())\n\n\n"
        "def batch():\n    return torch.randn(3, 6)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ["bench", "infer", "own_nets:build", "--batch", "4", "--threads", "1", "--rounds", "1", "--no-compile"]
    done = CliRunner().invoke(whole, [*given, "--inputs", "own_nets:batch", "--sparsity", "0.5"])
    assert done.exit_code == 0, done.output
    assert "own_nets:build, batch 4, 1 thread" in done.output
    assert "ours, 50% zeros" in done.output
    assert "--inputs module:function" in str(CliRunner().invoke(whole, given).exception)


def test_the_best_dense_engine_of_the_same_precision_decides() -> None:
    timings = {
        EAGER: Timing(1.0, 9.0, 3), ORT: Timing(4.0, 6.0, 3), "OpenVINO int8": Timing(1.0, 2.0, 3),
        "onnxruntime int8": Timing(1.5, 1.5, 3), "ours, 90% zeros": Timing(2.0, 3.0, 3),
        "ours int8, 90% zeros": Timing(1.0, 1.0, 3), "ours bfloat16, 90% zeros": Timing(1.0, 1.0, 3),
    }  # fmt: skip
    rows = {row.contestant: row for row in rows_of("net", 1, 1, timings)}
    assert rows["ours, 90% zeros"].over_best_dense == 2.0
    assert rows["ours int8, 90% zeros"].over_best_dense == 1.5
    assert rows["OpenVINO int8"].over_best_dense == 0.75
    assert rows["ours bfloat16, 90% zeros"].over_best_dense is None
    assert [row.precision for row in rows.values()] == ["float32", "float32", "int8", "int8", "float32", "int8", "bfloat16"]


def test_dense_engines_in_every_precision_and_missing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = pruned("small_conv", 0.5), bench.example("small_conv", 2)
    real = engines.import_module

    def without_openvino(name: str) -> object:
        if name == "openvino":
            raise ImportError("No module named 'openvino'")
        return real(name)

    monkeypatch.setattr(engines, "import_module", without_openvino)
    with torch.no_grad():
        calls, notes = engines.dense_contestants(model, inputs, 1, False, engines.PRECISIONS)
        for call in calls.values():
            call()
    assert set(calls) == {EAGER, ORT, f"{EAGER} bfloat16", f"{ORT} int8"}
    assert [note.split(" was")[0] for note in notes] == ["OpenVINO", "OpenVINO bfloat16", "OpenVINO int8"]
    assert all('pip install "autosparse[bench]"' in note for note in notes)


def test_int8_engines_give_nearly_the_same_outputs() -> None:
    pytest.importorskip("openvino")
    model, inputs = pruned("small_conv", 0.5), bench.example("small_conv", 4)
    with torch.no_grad():
        calls, notes = engines.dense_contestants(model, inputs, 1, False, ("int8",))
        expected = model(*inputs)
        assert notes == []
        for name, call in calls.items():
            result: Any = call()
            output = torch.from_numpy(result[0])
            assert float((output - expected).norm() / expected.norm()) < 0.1, name


def test_bert_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 30522, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    monkeypatch.setattr(transformers, "BertConfig", lambda small=transformers.BertConfig: small(**sizes))
    (tokens,) = bench.example("bert_base", 2)
    assert tokens.shape == (2, 128)
    ((_, model),) = bench.contestants("bert_base", [0.9])
    assert zeros(model) == pytest.approx(0.9, abs=0.02)
    assert model(tokens).last_hidden_state.shape == (2, 128, 16)


def test_inputs_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_inputs.py").write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n"
        "    def forward(self, ids, mask, more=None):\n        return ids * mask\n\n"
        "def batch():\n    return {'mask': torch.ones(2, 3), 'ids': torch.zeros(2, 3)}\n\n"
        "def gap():\n    return {'ids': torch.zeros(2, 3), 'more': torch.ones(1)}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from named_inputs import Net  # type: ignore[import-not-found]

    ids, mask = bench.example("named_inputs:Net", 2, "named_inputs:batch", Net())
    assert (float(ids.sum()), float(mask.sum())) == (0, 6)
    with pytest.raises(ValueError, match="first parameters of forward, which are ids, mask"):
        bench.example("named_inputs:Net", 2, "named_inputs:gap", Net())
