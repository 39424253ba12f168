"""The best checkpoint and early stopping of both frameworks look at models at the target alone."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from safetensors.torch import load_file
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback

import autosparse
from autosparse import GMP, AutoSparse
from autosparse.integrations.transformers import sparsify_trainer

from ..states import differences
from .lightning_parts import BATCHES, Net, SparseTraining, fit, loader, trainer
from .trainer_runs import arguments, bert, sentences

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*treespec.*"),
]
TARGET = AutoSparse(target_sparsity=0.7, target_ramp=0.5)
BEST = {
    "save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "score",
    "greater_is_better": True, "num_train_epochs": 8,
}  # fmt: skip


class EarlierIsBetter(TrainerCallback):
    """As accuracy often is while zeros are added."""

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kwargs["metrics"]["eval_score"] = -state.global_step


def best_trainer(folder: Path, method: Any = TARGET, *callbacks: TrainerCallback, **options: Any) -> Any:
    trainer = Trainer(
        model=bert(), args=arguments(folder, **{**BEST, **options}), train_dataset=sentences(), eval_dataset=sentences(8),
        callbacks=[EarlierIsBetter(), *callbacks],
    )  # fmt: skip
    return trainer, sparsify_trainer(trainer, method)


@pytest.mark.parametrize("method", [TARGET, GMP(sparsity=0.7, begin=0.0, end=0.5, update_every=1)], ids=["target", "gmp"])
def test_the_best_model_is_the_first_at_the_target_and_comes_with_its_thresholds(method: Any, tmp_path: Path) -> None:
    trainer, sp = best_trainer(tmp_path, method)
    trainer.train()
    assert sp.step == int(trainer.state.best_model_checkpoint.rpartition("-")[2]) == 12  # of 24
    assert sp.at_target
    assert [entry["sparsity"] >= 0.695 for entry in sp.history] == [False, False, False, True]
    stored = load_file(tmp_path / f"checkpoint-{sp.step}" / "model.safetensors")
    assert differences(sp.finalize().state_dict(), stored) == []


def test_patience_counts_from_the_target_on(tmp_path: Path) -> None:
    trainer, sp = best_trainer(tmp_path, TARGET, EarlyStoppingCallback(early_stopping_patience=2))
    trainer.train()
    assert trainer.state.global_step == 18  # two evaluations after that of step 12
    assert sp.sparsity() == pytest.approx(0.7, abs=0.005)


class Stop(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == 4


def test_a_run_that_is_stopped_before_its_target_says_so(tmp_path: Path) -> None:
    trainer, _ = best_trainer(tmp_path, TARGET, Stop())
    with (
        pytest.warns(autosparse.SparsityWarning, match=r"stopped at step 4 of 24 with 5\d\.\d% zeros, before its target"),
        pytest.warns(autosparse.SparsityWarning, match="load_best_model_at_end loaded none: the last one stays"),
    ):
        trainer.train()


class EarlierIsBest(Net):
    """Its score falls with every step."""

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("score", -float(self.trainer.global_step))

    def val_dataloader(self) -> Any:
        return loader()


def best_of(folder: Path, method: Any = TARGET, *callbacks: Any, **options: Any) -> tuple[Any, Any, EarlierIsBest]:
    saves = ModelCheckpoint(folder, filename="{epoch}", monitor="score", mode="max", **options.pop("saves", {}))
    sparse, module = SparseTraining(method), EarlierIsBest()
    fit(sparse, module, saves, *callbacks, max_epochs=8, **options)
    return saves, sparse.sparsifier, module


@pytest.mark.parametrize("saves", [{}, {"save_top_k": 2, "save_last": True}, {"save_top_k": -1}], ids=str)
def test_the_best_checkpoint_of_lightning_is_the_first_at_the_target(saves: dict[str, Any], tmp_path: Path) -> None:
    checkpoints, sp, _ = best_of(tmp_path, saves=saves)
    first = next(number for number, entry in enumerate(sp.history) if entry["sparsity"] >= 0.695)
    assert 0 < first < 5
    assert Path(checkpoints.best_model_path).name == f"epoch={first}.ckpt"
    assert float(checkpoints.best_model_score) == -BATCHES * (first + 1)
    every = {path.name for path in tmp_path.glob("epoch=*.ckpt")}
    assert len(every) == {-1: 8}.get(checkpoints.save_top_k, checkpoints.save_top_k)


class Cut(Callback):
    """Ends the run after some epochs."""

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = trainer.global_step == 3 * BATCHES


def test_a_run_that_is_cut_before_its_target_has_its_newest_checkpoint_and_says_so(tmp_path: Path) -> None:
    with (
        pytest.warns(autosparse.SparsityWarning, match=r"stopped at step 18 of 48 with \d\d\.\d% zeros, before its target"),
        pytest.warns(autosparse.SparsityWarning, match=r"monitor='score'\) has the run's final sparsity: .*epoch=2.ckpt is"),
    ):
        checkpoints, sp, _ = best_of(tmp_path, AutoSparse(target_sparsity=0.7, target_ramp=1.0), Cut())
    assert [path.name for path in tmp_path.glob("*")] == ["epoch=2.ckpt"]
    assert checkpoints.best_model_path.endswith("epoch=2.ckpt")
    assert not sp.at_target


@pytest.mark.parametrize("at_train_epoch_end", [False, True])
def test_patience_of_lightning_counts_from_the_target_on(at_train_epoch_end: bool, tmp_path: Path) -> None:
    stop = EarlyStopping("score", mode="max", patience=2, check_on_train_epoch_end=at_train_epoch_end)
    _, sp, _ = best_of(tmp_path, TARGET, stop)
    first = next(number for number, entry in enumerate(sp.history) if entry["sparsity"] >= 0.695)
    assert stop.stopped_epoch == first + 2
    assert sp.sparsity() == pytest.approx(0.7, abs=0.005)


def test_a_score_that_is_not_finite_stops_at_once(tmp_path: Path) -> None:
    class Diverged(EarlierIsBest):
        def validation_step(self, batch: Any, index: int) -> None:
            self.log("score", float("nan"))

    sparse, stop = SparseTraining(TARGET), EarlyStopping("score", mode="max", patience=9)
    with pytest.warns(autosparse.SparsityWarning, match="stopped at step 6 of 48"):
        fit(sparse, Diverged(), stop, max_epochs=8)
    assert sparse.sparsifier.step == BATCHES


# ------------------------------------------------------------------------------------------- load_from_checkpoint


@pytest.mark.parametrize("weights_only", [False, True])
def test_a_checkpoint_of_lightning_is_a_plain_model(weights_only: bool, tmp_path: Path) -> None:
    checkpoints, sp, module = best_of(tmp_path, saves={"save_top_k": -1, "save_weights_only": weights_only})
    plain = EarlierIsBest.load_from_checkpoint(tmp_path / "epoch=7.ckpt")
    assert differences(plain.state_dict(), sp.finalize().state_dict()) == []
    assert sum(int((weight == 0).sum()) for weight in plain.parameters()) > 0.69 * 416
    pickle.dumps((module, checkpoints))  # nothing of ours is left in them


def test_a_plain_checkpoint_of_a_run_comes_back_with_its_thresholds(tmp_path: Path) -> None:
    """Into the sparsified module of the run; the files that hold weights alone are plain there too."""
    _, sp, module = best_of(tmp_path, saves={"save_top_k": -1})
    expected = {name: value.clone() for name, value in module.state_dict().items()}
    inputs = torch.randn(4, 10)
    outputs = module.net(inputs)
    made = trainer(SparseTraining(TARGET))
    made.callbacks[0].sparsifier = sp  # type: ignore[attr-defined]
    for path in ("epoch=1.ckpt", "epoch=7.ckpt"):
        made.validate(module, loader(), ckpt_path=tmp_path / path, verbose=False)
        assert torch.equal(module.net(inputs), outputs) == (path == "epoch=7.ckpt")
    assert differences(module.state_dict(), expected) == []
