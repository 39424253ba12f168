"""Precisions other than float32, and a GradScaler that skips steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import autosparse
from autosparse import STR, AutoSparse

from ..states import differences
from .training import Run, batch, begin, conv_net, mlp

METHOD = AutoSparse(alpha=0.5, start_sparsity=0.4)
STEERED = AutoSparse(alpha=0.5, target_sparsity=0.7, threshold="shared")


def test_autocast_trains_with_float32_thresholds_and_gradients() -> None:
    run = begin(conv_net(), METHOD, (1, 8, 8))
    inputs, targets = batch(0, run.shape)
    losses = []
    for _ in range(5):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = run.model(inputs)
            loss = nn.functional.cross_entropy(output, targets)
        assert output.dtype == torch.bfloat16
        run.opt.zero_grad()
        loss.backward()
        run.opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for parameter in run.model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
    run.sp.end_epoch()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        trained = run.model.eval()(inputs)
        assert torch.equal(run.sp.finalize()(inputs), trained)


@pytest.mark.parametrize(
    ("cast", "threshold"), [("bfloat16", torch.float32), ("half", torch.float32), ("double", torch.float64)]
)
def test_a_model_cast_before_sparsify(cast: str, threshold: torch.dtype) -> None:
    """Thresholds and the backward bound are at least float32; the effective weight has the weight's own type."""
    model = getattr(mlp(), cast)()
    dtype = next(model.parameters()).dtype
    run = begin(model, AutoSparse(alpha=0.5, start_sparsity=0.4, backward_sparsity=0.2))
    assert {each.dtype for each in run.sp.thresholds()} == {threshold}
    assert {layer.parametrization.backward_bound.dtype for layer in run.sp.layers} == {threshold}
    assert model[0].weight.dtype == dtype
    start = run.sp.sparsity()
    assert start == pytest.approx(0.4, abs=0.02)
    before = [each.detach().clone() for each in run.sp.thresholds()]
    run.advance(20)
    assert all(not torch.equal(old, new) for old, new in zip(before, run.sp.thresholds(), strict=True))
    inputs, _ = batch(0, run.shape, dtype)
    zeros, trained = run.sp.report().zeros, model(inputs)
    plain = run.sp.finalize()
    assert torch.equal(plain(inputs), trained)
    assert {each.dtype for each in plain.parameters()} == {dtype}
    assert sum(int((layer.weight == 0).sum()) for layer in plain if isinstance(layer, nn.Linear)) == zeros


@pytest.mark.parametrize("method", [METHOD, STEERED])
@pytest.mark.parametrize("cast", ["bfloat16", "half"])
def test_a_cast_after_sparsify_stops_the_next_step(cast: str, method: AutoSparse) -> None:
    run = begin(mlp(), method)
    run.step()
    getattr(run.model, cast)()
    before = copy.deepcopy(run.model.state_dict())
    with pytest.raises(RuntimeError, match=r"was cast to torch\..*cast the model before sparsify"):
        run.step()
    assert differences(run.model.state_dict(), before) == []
    assert (run.sp.step, run.sp.ledger.steps) == (1, 1)


def test_a_model_cast_to_float64_after_sparsify_trains() -> None:
    run = begin(mlp(), METHOD)
    run.model.double()
    run.advance(5)
    assert {each.dtype for each in run.model.parameters()} == {torch.float64}


# ------------------------------------------------------------------------------------------------------------- GradScaler


def scaled_step(run: Run, scaler: torch.amp.GradScaler, overflow: bool) -> None:
    inputs, targets = batch(run.sp.step, run.shape)
    run.opt.zero_grad()
    scaler.scale(nn.functional.cross_entropy(run.model(inputs), targets)).backward()
    if overflow:
        weight = run.sp.layers[-1].stored
        assert weight.grad is not None
        weight.grad[0, 0] = torch.inf
    scaler.step(run.opt)
    scaler.update()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_skipped_steps_do_not_count(optimizer: str, fused: bool) -> None:
    method = AutoSparse(alpha=0.5, alpha_per="epoch", dense_grad_every=2, target_sparsity=0.7)
    run = begin(mlp(), method, optimizer=optimizer, fused=fused, example_input=torch.zeros(1, 10))
    twin_model, twin_sp = copy.deepcopy((run.model, run.sp))
    twin_opt = type(run.opt)(twin_sp.param_groups(weight_decay=1e-2), **_options(run.opt))
    twin_sp.bind(twin_opt)
    twin = Run(twin_model, twin_sp, twin_opt, run.shape)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    # torch's fused SGD leaves its momentum uninitialised if the very first step overflows
    first = [] if optimizer == "sgd" and fused else [True]
    gates = []
    for overflow in [*first, False, True, False, True, True, False]:
        before, step = copy.deepcopy((run.model.state_dict(), run.sp.state_dict())), run.sp.step
        scaled_step(run, scaler, overflow)
        if overflow:
            assert differences((run.model.state_dict(), run.sp.state_dict()), before) == []
        else:
            twin.step()
        assert run.sp.step == run.sp.ledger.steps == step + (not overflow)
        gates.append(run.sp.layers[0].parametrization.gate.item())
    assert gates[-6:] == [0.0, 0.0, 0.5, 0.5, 0.5, 0.0]
    # scales are powers of two: nothing is rounded, the skipped steps left no trace
    assert differences(run.sp.state_dict(), twin.sp.state_dict()) == []
    assert differences(run.model.state_dict(), twin.model.state_dict()) == []


def _options(opt: torch.optim.Optimizer) -> dict[str, Any]:
    return {name: opt.defaults[name] for name in ("lr", "momentum", "fused") if name in opt.defaults}


@pytest.mark.parametrize("fused", [False, True])
def test_a_fused_optimizers_scaled_gradients_are_shown_unscaled(fused: bool) -> None:
    run = begin(mlp(), METHOD, fused=fused)
    seen = []
    original = run.sp._before_step

    def note() -> bool:
        seen.append(run.sp.gradient(run.sp.layers[0]).clone())
        return original()

    assert run.sp._binding is not None
    run.sp._binding._before = note
    inputs, targets = batch(0, run.shape)
    stored = run.sp.layers[0].stored
    expected = torch.autograd.grad(nn.functional.cross_entropy(run.model(inputs), targets), stored)[0]
    scaled_step(run, torch.amp.GradScaler("cpu", init_scale=8.0), overflow=False)
    torch.testing.assert_close(seen[0], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_in_one_of_two_optimizers(fused: bool, skipped: int) -> None:
    """The scaler skips that one alone: the pair took no whole step, so none is counted, and the next one is."""
    model = mlp()
    sp = autosparse.sparsify(model, METHOD, epochs=4, steps_per_epoch=5)
    groups = sp.param_groups(weight_decay=1e-2)
    opts = [torch.optim.SGD([group], lr=0.1, fused=fused) for group in groups]
    sp.bind(*opts)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for overflow in (True, False):
        inputs, targets = batch(0, (10,))
        scaler.scale(nn.functional.cross_entropy(model(inputs), targets)).backward()
        if overflow:
            groups[skipped]["params"][0].grad.fill_(torch.inf)
        for opt in opts:
            scaler.step(opt)
        scaler.update()
        for opt in opts:
            opt.zero_grad()
    assert sp.step == sp.ledger.steps == 1


def test_a_run_with_skipped_steps_is_saved_and_loaded() -> None:
    run = begin(mlp(), STR(start_sparsity=0.4))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for overflow in (False, True, False):
        scaled_step(run, scaler, overflow)
    state = run.state()
    other = begin(mlp(), STR(start_sparsity=0.4))
    other.load(copy.deepcopy(state))
    assert other.sp.step == 2
    assert differences(other.state(), state) == []
