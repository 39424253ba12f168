"""Recipes whose last epochs train with fake quantization: they resume exactly and leave plain models that suit int8."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autosparse.quantization.affine import quantize_weight, weight_scales
from autosparse.recipes.loading import load_recipe
from autosparse.training import loop
from autosparse.training.evaluate import evaluate
from autosparse.training.run import train
from autosparse.training.signals import Stopped

from .conftest import Workshop

STEPS = 6  # batches of 32 in 200 digits
CHANGES = ["train.epochs=3", "data.limit=200", "train.quantize_aware=2", "train.precision=fp32"]


def is_rounded(weight: torch.Tensor) -> bool:
    rows = weight.flatten(1)
    scales = weight_scales(rows)
    return bool((quantize_weight(rows, scales).float() * scales[:, None] - rows).abs().max() <= 1e-6 * rows.abs().max())


@pytest.mark.parametrize("method", ["autosparse", "dense"])
def test_the_weights_are_rounded_and_runs_resume_exactly(
    method: str, fresh_workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [*CHANGES, *(["method=dense"] if method == "dense" else [])]
    whole = train(load_recipe("tiny.yaml", changes), "whole", quiet=True)
    weights = fresh_workshop.weights("whole")
    assert all(is_rounded(weights[f"{name}.weight"]) for name in ("0", "4.0", "6"))
    assert not any("quantizer" in name or "parametrizations" in name for name in weights)
    assert evaluate("whole")["accuracy"] == whole["accuracy"]

    real, calls, cut = loop.train_step, 0, STEPS + 2  # before the first checkpoint with rounded weights, and later within one

    def step(*arguments):
        nonlocal calls
        calls += 1
        if calls == cut:
            raise Stopped("cut", 143)
        return real(*arguments)

    monkeypatch.setattr(loop, "train_step", step)
    monkeypatch.setattr(loop, "CHECK_EVERY", 4)  # a checkpoint every four steps
    for resume, last in ((False, False), (True, False), (True, True)):
        if last:
            monkeypatch.setattr(loop, "train_step", real)
            train(load_recipe("tiny.yaml", changes), "cut", quiet=True, resume=resume)
        else:
            calls = 0
            with pytest.raises(Stopped):
                train(load_recipe("tiny.yaml", changes), "cut", quiet=True, resume=resume)
            cut = STEPS + 4
    fresh_workshop.assert_same("whole", "cut")
    assert evaluate("cut", checkpoint="last")["accuracy"] == whole["accuracy"]


def test_what_is_refused(fresh_workshop: Workshop) -> None:
    with pytest.raises(ValueError, match=r"train\.quantize_aware: 9 is more than the run's 4 epochs"):
        load_recipe("tiny.yaml", ["train.quantize_aware=9"])
    with pytest.raises(ValueError, match=r"train\.quantize_aware: layers change"):
        load_recipe("tiny.yaml", ["train.quantize_aware=1", "train.compile=true"])
    assert not Path("whole").exists()


def test_precisions_have_two_spellings(fresh_workshop: Workshop) -> None:
    for short, long in (("fp32", "float32"), ("bf16", "bfloat16")):
        for word in (short, long):
            assert load_recipe("tiny.yaml", [f"train.precision={word}"]).train.precision == long
            assert load_recipe("tiny.yaml", [f"train.exchange={word}"]).train.exchange == long
    with pytest.raises(ValueError, match=r"train\.precision.*float32.*bfloat16"):
        load_recipe("tiny.yaml", ["train.precision=int8"])
