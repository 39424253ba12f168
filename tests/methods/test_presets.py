"""Presets of AutoSparse: which values they give, that given fields win, and that alpha comes to 0 in every one of them."""

from __future__ import annotations

import dataclasses

import pytest
from torch import nn

import autosparse
from autosparse import AutoSparse, AutoTune
from autosparse.methods.presets import PRESETS

EPOCHS, STEPS = 10, 8


def alphas(loop, method, epochs=EPOCHS, steps=STEPS):
    """alpha of every step of a run."""
    run = loop(nn.Linear(10, 30), method, epochs=epochs, steps=steps)
    found = []
    for _ in range(epochs):
        for _ in range(steps):
            found.append(run.sp.alpha)
            run.step()
        run.sp.end_epoch(loss=1.0)
    return found


@pytest.mark.parametrize(
    ("preset", "zero_from"), [("fast", 0), ("balanced", 0.7 * EPOCHS * STEPS), ("accurate", 0.9 * EPOCHS * STEPS)]
)
def test_alpha_is_zero_from_a_moment_on(preset, zero_from, loop):
    found = alphas(loop, AutoSparse(preset=preset, target_sparsity=0.7))
    assert [step for step, alpha in enumerate(found) if alpha == 0] == list(range(round(zero_from), EPOCHS * STEPS))
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("fields", [{}, {"target_sparsity": 0.7}, {"target_sparsity": 0.7, "target_ramp": 1.0}])
@pytest.mark.parametrize("preset", [None, "fast", "balanced", "accurate"])
def test_the_last_tenth_of_any_run_has_no_alpha(preset, fields, loop):
    assert set(alphas(loop, AutoSparse(preset=preset, **fields))[72:]) == {0.0}


def test_the_default_is_balanced_and_moves_alpha_within_an_epoch(loop):
    assert alphas(loop, AutoSparse(target_sparsity=0.7)) == alphas(loop, AutoSparse(preset="balanced", target_sparsity=0.7))
    one_epoch = alphas(loop, AutoSparse(target_sparsity=0.7), epochs=1, steps=40)
    assert one_epoch[0] == pytest.approx(0.75, abs=0.01)
    assert len(set(one_epoch[:28])) == 28
    assert set(one_epoch[28:]) == {0.0}


def test_the_old_defaults_have_a_name(loop):
    found = alphas(loop, AutoSparse(preset="v0.1", target_sparsity=0.7))
    assert len(set(found)) == EPOCHS
    assert min(found) > 0


def test_fields_that_are_given_win():
    method = AutoSparse(preset="fast", alpha=0.3, target_sparsity=0.9)
    assert (method.alpha, method.zero_epoch, method.alpha_per) == (0.3, 0, "step")
    assert AutoSparse(zero_epoch="never").zero_epoch == "never"
    assert AutoSparse(alpha=0.5, schedule="constant").zero_epoch == "never"
    assert AutoSparse(autotune=AutoTune(epochs=1, reference=[1.0])).alpha_per == "epoch"


@pytest.mark.parametrize("preset", PRESETS)
def test_stored_fields_give_the_same_method(preset):
    method = AutoSparse(preset=preset, target_sparsity=0.9)
    assert AutoSparse(**{field.name: getattr(method, field.name) for field in dataclasses.fields(method)}) == method


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"preset": "quick"}, "preset = 'quick'; allowed: fast, balanced, accurate, v0.1"),
        ({"zero_epoch": 1.0}, "zero_epoch = 1.0; .* between 0 and 1; for whole epochs write zero_epoch = 1"),
        ({"horizon": 2.5}, r"horizon = 2\.5"),
        ({"zero_epoch": "end"}, "'ramp' or 'never'"),
        ({"alpha_per": "batch"}, "alpha_per = 'batch'; allowed: step, epoch"),
        ({"alpha_per": "step", "autotune": AutoTune(epochs=1, reference=[1.0])}, "per epoch"),
    ],
)
def test_bad_presets(fields, message):
    with pytest.raises(ValueError, match=message):
        AutoSparse(**fields)


def test_a_state_keeps_the_defaults_of_its_version(loop):
    old = loop(nn.Linear(10, 30), AutoSparse(preset="v0.1", target_sparsity=0.7), epochs=EPOCHS, steps=STEPS)
    state = old.sp.state_dict()
    for name in ("preset", "alpha_per"):
        del state["fields"][name]
    state["fields"]["zero_epoch"] = None  # which was never
    new = loop(nn.Linear(10, 30), AutoSparse(target_sparsity=0.7), epochs=EPOCHS, steps=STEPS)
    new.sp.load_state_dict(state)
    assert (new.sp.method.alpha_per, new.sp.method.zero_epoch) == ("epoch", "never")
    other = loop(nn.Linear(10, 30), AutoSparse(target_sparsity=0.7, zero_epoch=0.4), epochs=EPOCHS, steps=STEPS)
    with pytest.raises(ValueError, match=r"zero_epoch was 'never', is 0\.4"):
        other.sp.load_state_dict(state)


def test_the_name_of_a_preset_is_no_difference():
    states = []
    for method in (AutoSparse(target_sparsity=0.7), AutoSparse(preset="balanced", target_sparsity=0.7)):
        states.append(autosparse.sparsify(nn.Linear(10, 30), method, epochs=2, steps_per_epoch=2))
    states[0].load_state_dict(states[1].state_dict())
