"""A finished run deployed in a precision: its figures and its time per sample beside those of the plain model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.common.precisions import precision_name
from autosparse.common.turns import clock_for, take_turns
from autosparse.data import Data
from autosparse.serving import Deployed, deploy
from autosparse.serving.deployment import with_threads
from autosparse.training.evaluate import bleu, translate, with_data
from autosparse.training.finished import Finished, calibration_batches, held_out_data, open_finished
from autosparse.training.validate import validate

SERVED = ("float32", "bfloat16", "int8", "auto")
CALIBRATION = 512  # samples of the training data
MOST_ROUNDS, LEAST_ROUNDS, ENOUGH_SECONDS = 400, 30, 0.5


def deploy_in(
    model: nn.Module,
    example: tuple[Tensor, ...],
    precision: str,
    threads: int,
    calibration: Callable[[], Sequence[tuple[Tensor, ...]]],
) -> Deployed:
    """`deploy` in this precision; the calibration batches are asked for where it needs them."""
    batches = calibration() if precision in ("int8", "auto") else None
    return deploy(model, example, threads=threads, precision=precision, calibration=batches)


def deploy_finished(
    finished: Finished, example: tuple[Tensor, ...], precision: str, threads: int, samples: int = CALIBRATION
) -> Deployed:
    """A run's model for serving, calibrated on its own training data."""
    return deploy_in(finished.model.float(), example, precision, threads, lambda: calibration_batches(finished, samples))


def evaluate_deployed(
    folder: Path | str,
    *,
    precision: str | None = None,
    threads: int = 1,
    beam: int = 4,
    split: str = "test",
    data_path: str | None = None,
) -> dict[str, Any]:
    """Accuracy or BLEU of the deployed model and of the plain one in float32, and milliseconds per sample of both.

    Without a precision it is that of the run's target_latency, else float32.
    """
    finished = open_finished(Path(folder))
    method = finished.recipe.method
    asked = method.get("target_latency")
    usual = method.get("precision", "float32") if asked is not None else "float32"
    name = precision_name(usual if precision is None else precision, "--precision", SERVED)
    recipe = with_data(finished.recipe, split, data_path)
    data = held_out_data(finished.folder, recipe)
    batches = data.validation if split == "validation" else data.test
    sample = tuple(tensor[:1] for tensor in next(iter(batches.epoch(0)))[0])
    with with_threads(threads), torch.no_grad():
        served = deploy_finished(finished, sample, name, threads)
        models = {"plain": finished.model.eval(), "deployed": served}
        calls = {key: _call(model, data, sample, split) for key, model in models.items()}
        rounds: dict[str, Any] = {"least_rounds": LEAST_ROUNDS, "enough_seconds": ENOUGH_SECONDS}
        seconds = take_turns(calls, MOST_ROUNDS, clock=clock_for(threads), before=lambda key: calls[key](), **rounds)
        figures = {key: _score(model, data, split, beam) for key, model in models.items()}
    for key, times in seconds.items():
        figures[key]["milliseconds"] = 1e3 * statistics.median(times)
    about = {"run": str(finished.folder.path), "name": recipe.name, "method": recipe.method["name"], "split": split}
    how = {"precision": name, "threads": threads, "samples": batches.samples, "notes": list(served.notes)}
    if asked is not None and threads == 1 and name == precision_name(usual, "precision", SERVED):
        how["target_latency"] = asked
    return about | how | figures


def _score(model: nn.Module, data: Data, split: str, beam: int) -> dict[str, Any]:
    place = "validation" if split == "validation" else "test"
    score = validate(model, getattr(data, place), torch.device("cpu"), padding_id=data.padding_id)
    if data.text is None:
        return {"accuracy": score.accuracy, "loss": score.loss}
    return {"token_accuracy": score.accuracy, "loss": score.loss, "bleu": bleu(model, data, split=place, beam=beam).score}


def _call(model: nn.Module, data: Data, sample: tuple[Tensor, ...], split: str) -> Callable[[], object]:
    """One sample at a time: a picture, or a sentence translated greedily."""
    if data.text is None:
        return lambda: model(*sample)
    sentence = data.text.sources["validation" if split == "validation" else "test"][0]
    return lambda: translate(model, data, [sentence], beam=1)
