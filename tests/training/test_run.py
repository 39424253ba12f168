"""Whole runs inside the test's process: what they leave behind, and what they do when something is wrong."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autosparse import SparsityWarning
from autosparse.experiments.runner import state_of
from autosparse.methods.autotune import AutoTune, ReferenceRecorder
from autosparse.recipes.loading import completed, load_recipe
from autosparse.recipes.recipe import Recipe
from autosparse.training.evaluate import evaluate
from autosparse.training.folder import RunFolder
from autosparse.training.progress import Progress
from autosparse.training.run import train, write_reference
from autosparse.training.session import Diverged

from .conftest import Workshop


def recipe(*changes: str) -> Recipe:
    return load_recipe("tiny.yaml", ["train.epochs=2", "data.limit=128", *changes])


def run(out: str, *changes: str, **options: Any) -> dict[str, Any]:
    return train(recipe(*changes), out, quiet=True, **options)


def test_what_a_run_leaves(fresh_workshop: Workshop) -> None:
    result = run("r", "train.dense_beside=true")
    assert result == json.loads(Path("r/result.json").read_text())
    assert result["sparsity"] == pytest.approx(0.6, abs=0.005)
    assert result["base_accuracy"] == fresh_workshop.json("r/dense", "result.json")["accuracy"]
    assert result["total_macs"] == sum(result["macs"].values())
    assert {layer["name"] for layer in result["layers"]} == {"0", "4.0", "6"}
    weights = fresh_workshop.weights("r")
    zeros = sum(int((weights[f"{layer['name']}.weight"] == 0).sum()) for layer in result["layers"])
    assert zeros == result["zeros"]
    assert [line["epoch"] for line in fresh_workshop.metrics("r")] == [1, 2]
    assert fresh_workshop.json("r", "run.json")["status"] == "done"
    assert load_recipe("r/recipe.yaml") == completed(recipe("train.dense_beside=true"))
    assert result["gain"]["dense"] == "measured"
    assert result["gain"]["ratio"] == result["gain"]["dense_seconds"] / result["gain"]["seconds"]
    assert list(Path("r/tensorboard").iterdir())


def test_the_saved_model_has_the_accuracy_of_the_result(fresh_workshop: Workshop) -> None:
    from autosparse.data import open_data
    from autosparse.training.build import build_model
    from autosparse.training.validate import validate

    result = run("r")
    data = open_data(recipe().data)
    model = build_model(recipe().model, data)
    model.load_state_dict(fresh_workshop.weights("r"))
    assert validate(model, data.validation, torch.device("cpu")).accuracy == result["accuracy"]


@pytest.mark.parametrize("source", ["dense", "dense/model.safetensors"])
def test_a_run_may_start_from_the_weights_of_another(source: str, fresh_workshop: Workshop) -> None:
    run("dense", "method=dense")
    run("again", "method={name: ltp, penalty_weight: 0.0}", f"initial_weights={source}", "optimizer.lr=1e-12", "train.epochs=1")
    before, after = fresh_workshop.weights("dense"), fresh_workshop.weights("again")
    assert all(torch.allclose(before[name], after[name]) for name in ("0.weight", "4.0.weight", "6.weight"))


def test_weights_that_are_not_there_or_do_not_fit_are_refused(fresh_workshop: Workshop) -> None:
    with pytest.raises(FileNotFoundError, match=r"initial_weights = elsewhere: .* give the folder of a finished run"):
        run("r", "initial_weights=elsewhere")
    Path("other.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"initial_weights = other.safetensors cannot be loaded into the recipe's model"):
        run("s", "initial_weights=other.safetensors")


def test_an_epoch_is_judged_as_it_is_saved_after_its_masks_have_changed(fresh_workshop: Workshop) -> None:
    result = run("r", "method={name: optg, sparsity: 0.6, beta: 10.0}", "optimizer.lr=1e-9")
    assert result["best_epoch"] == 1  # the masks of optg change at its end, and not at the end of the run
    judged = fresh_workshop.metrics("r")[0]["validation_loss"]
    assert evaluate("r", checkpoint="best")["loss"] == pytest.approx(judged, rel=1e-6)


def test_accumulation_changes_nothing_but_rounding(fresh_workshop: Workshop) -> None:
    # batch norm and dropout see parts of the batch, so a net without them
    Path("plain_net.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    common = ("model.name=plain_net:net", "method={name: str, start_sparsity: 0.2}")
    losses = [run(f"a{parts}", *common, f"train.accumulate={parts}")["loss"] for parts in (1, 4)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_auto_tuned_runs_make_their_dense_reference_first(fresh_workshop: Workshop) -> None:
    tune = "method={name: autosparse, autotune: {epochs: 1}, start_sparsity: 0.3}"
    result = run("r", tune, "optimizer.threshold_decay_total=3")
    reference = json.loads(Path("r/reference.json").read_text())["losses"]
    lines = fresh_workshop.metrics("r/reference")
    assert reference == [line["loss"] for line in lines]
    assert len(lines) == 1
    # one dense epoch of two is counted
    assert result["train_fraction"] > 0.5
    from_file = tune.replace("epochs: 1", "epochs: 1, reference: r/reference.json")
    again = run("again", from_file, "optimizer.threshold_decay_total=3")
    assert again["sparsity"] == result["sparsity"]
    assert not Path("again/reference").exists()


@pytest.mark.parametrize(
    "method", ["{name: snip, sparsity: 0.5}", "{name: lottery, sparsity: 0.5, rounds: 1}", "{name: rigl, sparsity: 0.5}"]
)
def test_methods_that_score_train_in_rounds_or_grow(fresh_workshop: Workshop, method: str) -> None:
    result = run("r", f"method={method}")
    assert result["sparsity"] == pytest.approx(0.5, abs=0.01)
    assert result["epochs"] == 2


@pytest.mark.parametrize(
    ("name", "changes", "last"),
    [("prune_retrain", [], 0.005), ("prune_retrain", ["schedule.retrain_rate=0.01"], 0.0005), ("lottery", [], 0.05)],
)
def test_survivors_are_retrained_at_a_lower_rate(fresh_workshop: Workshop, name: str, changes: list[str], last: float) -> None:
    run("r", f"method={{name: {name}, sparsity: 0.5}}", "method.rounds=1", "schedule={name: constant}", *changes)
    assert [line["lr"] for line in fresh_workshop.metrics("r")] == pytest.approx([0.05, last])


def test_rounds_that_do_not_divide_the_epochs_are_refused(fresh_workshop: Workshop) -> None:
    with pytest.raises(ValueError, match=r"lottery trains 3 rounds: train.epochs = 2 must be a multiple"):
        run("r", "method={name: lottery, sparsity: 0.5, rounds: 2}")


def test_a_loss_that_is_no_number_stops_the_run(fresh_workshop: Workshop) -> None:
    with pytest.raises(Diverged, match=r"no longer a number.*Try a lower optimizer.lr"):
        run("r", "optimizer.lr=1e30", "train.clip=null", "train.epochs=6")
    info = fresh_workshop.json("r", "run.json")
    assert info["status"] == "failed"
    for name in ("last.pt", "previous.pt"):
        path = Path("r/checkpoints") / name
        if path.exists():
            saved = torch.load(path, weights_only=True)["model"]
            assert all(torch.isfinite(tensor).all() for tensor in saved.values() if tensor.is_floating_point())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.name=nowhere:net", "No module named 'nowhere'"),
        ("model.name=user_net:other", "has no attribute 'other'"),
        ("model={name: 'user_net:net', arguments: {depth: 3}}", "does not take these arguments"),
        ("model.name=user_net:words", "returned str; it must return an nn.Module"),
        ("model.name=os:getcwd", "add --allow-code os (or set AUTOSPARSE_ALLOW_CODE=os)"),
        ("model.name=user_net:os.getcwd", "add --allow-code posix"),
        ("model.name=user_net:atexit.register", "add --allow-code atexit"),
        ("model.name=user_net:nn.Flatten", "add --allow-code torch "),
        ("model.name=user_net:net.__globals__.get", "is not of the form package.module:function"),
        ("model.name=':net'", "is not of the form package.module:function"),
        ("model.name=autosparse.common.packages:need", "only what is in autosparse.models"),
        ("model.name=autosparse.models:inspect.getmodule", "add --allow-code inspect"),
        ("model.name=resnet51", "unknown model 'resnet51'"),
        ("train.device=cuda:7", "train.device = 'cuda:7' cannot be used here"),
        ("sparsify={exclude: [head]}", "head"),
    ],
)
def test_what_cannot_be_built_is_refused_before_training(fresh_workshop: Workshop, change: str, message: str) -> None:
    if "cuda" in change and torch.cuda.is_available():
        pytest.skip("this machine may have that device")
    with pytest.raises(ValueError, match=r".*") as refused:
        run("r", change)
    assert message in str(refused.value)


def test_a_run_that_failed_before_it_saved_may_be_started_again(fresh_workshop: Workshop) -> None:
    with pytest.raises(ValueError, match="head"):
        run("r", "sparsify={exclude: [head]}")
    assert fresh_workshop.json("r", "run.json")["status"] == "failed"
    assert run("r")["epochs"] == 2
    with pytest.raises(ValueError, match="exists already"):
        run("r")


def test_a_run_killed_while_it_wrote_its_first_file_may_be_started_again(fresh_workshop: Workshop) -> None:
    killer = "import os, signal; os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
    script = killer + "import sys; from autosparse import cli; cli.main(sys.argv[1:])"
    command = [sys.executable, "-c", script, "train", "tiny.yaml", "--no-report", "--quiet", "--out", "r"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    left = sorted(path.name for path in Path("r").iterdir())
    assert len(left) == 2  # the lock, and the recipe under its temporary name
    assert left[1].startswith(".recipe.yaml.")
    with pytest.raises(ValueError, match="nothing to resume in r: start the run without --resume"):
        run("r", resume=True)
    assert state_of(Path("r"), recipe()) == "new"
    assert run("r")["epochs"] == 2


@pytest.mark.parametrize("name", ["notes.tmp", ".notes.tmp", ".lock"])
def test_hidden_and_temporary_files_of_others_are_respected(fresh_workshop: Workshop, name: str) -> None:
    Path("r").mkdir()
    (Path("r") / name).write_text("mine")
    with pytest.raises(ValueError, match="r exists already"):
        run("r")
    assert [path.name for path in Path("r").iterdir()] == [name]


@pytest.mark.parametrize("rate", ["0.05", "1e30"])
def test_no_thread_outlives_a_run_whether_it_ends_well_or_fails(fresh_workshop: Workshop, rate: str) -> None:
    run("first", "train.dense_beside=true")  # libraries may start threads that stay when they are first used
    before = set(threading.enumerate())
    with pytest.raises(Diverged) if rate == "1e30" else nullcontext():
        run("r", f"optimizer.lr={rate}", "train.clip=null", "train.epochs=6", "train.dense_beside=true")
    assert set(threading.enumerate()) == before


def test_clipping_leaves_thresholds_out(fresh_workshop: Workshop) -> None:
    from autosparse.training import loop

    seen: list[set[str]] = []
    original = torch.nn.utils.clip_grad_norm_

    def spy(parameters: Any, norm: float) -> Any:
        seen.append({tuple(each.shape) for each in parameters})  # type: ignore[misc]
        return original(parameters, norm)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.torch.nn.utils, "clip_grad_norm_", spy)
        run("r", "train.clip=0.1")
    assert seen
    assert all((1,) not in shapes for shapes in seen)


def test_reference_losses_are_all_there_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed between two of them would take the file as complete when it is resumed."""
    present: list[bool] = []
    record = ReferenceRecorder.record

    def watch(recorder: ReferenceRecorder, loss: float) -> None:
        record(recorder, loss)
        present.append((tmp_path / "reference.json").exists())

    monkeypatch.setattr(ReferenceRecorder, "record", watch)
    write_reference(tmp_path / "reference.json", [2.0, 1.0])
    assert present == [False, False]
    assert AutoTune(epochs=2, reference=tmp_path / "reference.json").losses() == (2.0, 1.0)


@pytest.mark.parametrize("inner", ["", "dense"])
def test_a_run_killed_after_its_result_is_done_when_resumed(fresh_workshop: Workshop, inner: str) -> None:
    run("r", "train.dense_beside=true")
    folder = RunFolder(Path("r") / inner)
    folder.update_info(status="running")
    if inner:
        Path("r/result.json").unlink()
    run("r", "train.dense_beside=true", resume=True)
    folder.check_finished()


class Broken(Progress):
    """An output that fails at every call."""

    def start(self, title: str, total: int, done: int) -> None:
        raise BrokenPipeError

    update = stop = start  # type: ignore[assignment]


def test_an_output_that_fails_does_not_end_a_run(fresh_workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autosparse.training.progress.Lines", Broken)
    assert train(recipe(), "r")["epochs"] == 2


def write_idx(folder: Path, shade: int) -> None:
    """MNIST's files with images of random pixels."""
    folder.mkdir(exist_ok=True)
    for split, count in (("train", 64), ("t10k", 32)):
        pixels = np.random.default_rng(shade).integers(0, 256, (count, 8, 8), dtype=np.uint8)
        header = b"\0\0\x08\x03" + b"".join(int(n).to_bytes(4, "big") for n in pixels.shape)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + count.to_bytes(4, "big") + labels.tobytes())


def test_other_data_of_the_same_size_are_refused(fresh_workshop: Workshop) -> None:
    changes = ["data={source: idx, path: mine, batch_size: 32, channels: 1, classes: 10}"]
    write_idx(Path("mine"), 1)
    run("r", *changes)
    Path("r/result.json").unlink()
    write_idx(Path("mine"), 2)
    with pytest.raises(ValueError, match="the training and validation data is not what the run in r began with"):
        run("r", *changes, resume=True)
    info = fresh_workshop.json("r", "run.json")
    assert info["status"] == "done"
    del info["fingerprint"]  # as 0.1 left it
    Path("r/run.json").write_text(json.dumps(info))
    assert run("r", *changes, resume=True)["epochs"] == 2


def test_a_run_that_starts_from_trained_weights_says_what_its_method_does_to_them(fresh_workshop: Workshop) -> None:
    run("before", "train.epochs=4", "data.limit=400")
    with pytest.warns(SparsityWarning, match=r"set starts with 90% zeros in a trained model: the loss of the first batch is"):
        run("after", "train.epochs=4", "method={name: set, sparsity: 0.9}", "initial_weights=before")
