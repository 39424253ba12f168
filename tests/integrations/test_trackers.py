"""Scalars in the real trackers, offline; a tracker that is not installed is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autosparse
from autosparse import Sparsifier, SparsityWarning
from autosparse.integrations.trackers import scalars, track

NAMES = {"autosparse/sparsity", "autosparse/alpha", "autosparse/layers/0/sparsity", "autosparse/layers/2/threshold"}


def run(tracker: Any, epochs: int = 3) -> Sparsifier:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    sp = autosparse.sparsify(model, autosparse.AutoSparse(target_sparsity=0.7), epochs=3, steps_per_epoch=2)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.05)
    sp.bind(optimizer)
    track(sp, tracker)
    for _ in range(epochs):
        for _ in range(2):
            optimizer.zero_grad()
            torch.autograd.backward(model(torch.rand(4, 8)).square().mean())
            optimizer.step()
        sp.end_epoch(loss=0.5)
    return sp


def test_a_function_gets_every_epoch_with_its_step() -> None:
    seen: list[tuple[dict[str, float], int]] = []
    sp = run(lambda values, step: seen.append((values, step)))
    assert [step for _, step in seen] == [2, 4, 6]
    assert set(seen[0][0]) >= NAMES
    last = seen[-1][0]
    assert last["autosparse/sparsity"] == pytest.approx(sp.sparsity())
    assert last["autosparse/layers/0/sparsity"] == pytest.approx(1 - sp.densities()[0])
    assert last["autosparse/loss"] == 0.5
    assert not any("layers" in name for name in scalars(sp, layers=False))


def test_a_tracker_that_fails_does_not_end_the_run() -> None:
    def full(values: dict[str, float], step: int) -> None:
        raise OSError("no space left")

    with pytest.warns(SparsityWarning, match=r"the tracker failed .* OSError: no space left"):
        sp = run(full)
    assert sp.epoch == 3
    assert sp.listeners == []


def test_what_is_no_tracker_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="is no tracker"):
        run("runs")


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        sp = run(writer)
    read = EventAccumulator(str(tmp_path)).Reload()
    assert set(read.Tags()["scalars"]) >= NAMES
    events = read.Scalars("autosparse/sparsity")
    assert [event.step for event in events] == [2, 4, 6]
    assert events[-1].value == pytest.approx(sp.sparsity())


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"file://{tmp_path / 'runs'}")
    with mlflow.start_run() as started:
        sp = run(mlflow)
    history = mlflow.MlflowClient().get_metric_history(started.info.run_id, "autosparse/sparsity")
    assert [(point.step, point.value) for point in history][-1] == (6, pytest.approx(sp.sparsity()))
    assert set(mlflow.get_run(started.info.run_id).data.metrics) >= NAMES


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=str(tmp_path), project="trial") as started:
        run(started)
        summary = {name: started.summary[name] for name in NAMES}
    assert 0 < summary["autosparse/sparsity"] < 1
    assert list(tmp_path.rglob("*.wandb"))


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio")
    trackio.init(project="trial", name="first", embed=False)
    run(trackio)
    trackio.finish()
    from trackio.sqlite_storage import SQLiteStorage

    assert set(SQLiteStorage.get_logs("trial", "first")[-1]) >= NAMES
