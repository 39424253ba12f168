"""A weight that becomes NaN stops every method by the end of the epoch, with the name of its layer."""

from __future__ import annotations

import math
import re

import pytest
import torch

import autosparse
from autosparse.layer import Layer

from .running import active, begin
from .settings import STEPS

NAMES = autosparse.list_methods()


def spoil(layer: Layer, value: float = math.nan) -> None:
    """Set one active weight."""
    place = int(torch.nonzero(active(layer).reshape(-1))[0])
    with torch.no_grad():
        layer.stored.reshape(-1)[place] = value
    assert not layer.weight().isfinite().all()


@pytest.mark.parametrize("until", [STEPS + 3, 2 * STEPS - 1])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_stops_by_the_end_of_the_epoch(name: str, until: int) -> None:
    run = begin(name, "conv", "sgd")
    run.score()
    run.advance(until)
    layer = run.sp.layers[1]
    spoil(layer)
    with pytest.raises(ValueError, match=rf"weights of layers?.* {re.escape(repr(layer.name))}.* are not finite at step \d+"):
        run.advance(2 * STEPS)
    assert run.done <= 2 * STEPS


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_the_end_of_the_epoch_names_the_layer_and_changes_nothing(name: str, value: float) -> None:
    run = begin(name, "conv", "sgd")
    run.score()
    run.advance(STEPS - 1)
    run.backward()
    run.opt.step()
    layer = run.sp.layers[1]
    spoil(layer, value)
    before = run.sp.state_dict()
    with pytest.raises(
        ValueError, match=rf"weights of layer {re.escape(repr(layer.name))} are not finite at step {run.sp.step}:"
    ):
        run.sp.end_epoch(loss=1.0)
    assert (run.sp.epoch, run.sp.history) == (before["epoch"], before["history"])


@pytest.mark.parametrize("name", ["rigl", "topkast", "gmp"])
def test_steps_that_a_scaler_skips_do_not_count(name: str) -> None:
    run = begin(name, "conv", "sgd")
    run.advance(STEPS - 1)
    scaler = torch.amp.GradScaler("cpu")
    for factor in (math.nan, 1.0):
        run.backward()
        scaler.scale(torch.zeros(()))  # the scaler begins with its first scale
        for parameter in run.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        scaler.step(run.opt)
        scaler.update()
    assert run.sp.step == STEPS
    run.sp.end_epoch(loss=1.0)
    assert run.sp.epoch == 1
