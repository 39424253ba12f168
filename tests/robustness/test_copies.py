"""Copies of a run, averaged and exported models, and states that travel through files."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import autosparse
from autosparse import STR, AutoSparse, AutoTune
from autosparse.methods.families.base import Method

from ..states import differences, untimed
from .kinds import Attending, Recurrent, Tied
from .training import Run, batch, begin, conv_net, make_optimizer, mlp

IMAGE = (1, 8, 8)
METHODS: dict[str, Method] = {
    "target": AutoSparse(alpha=0.5, target_sparsity=0.7),
    "channels, backward sparsity": AutoSparse(alpha=0.5, threshold="channel", backward_sparsity=0.2, dense_grad_every=2),
    "autotune": AutoSparse(autotune=AutoTune(epochs=2, reference=(0.5, 0.4))),
    "str, shared": STR(threshold="shared", start_sparsity=0.5),
}


def copied(run: Run) -> Run:
    """Model, Sparsifier and optimizer of their own, as they are now."""
    model, sp = copy.deepcopy((run.model, run.sp))
    opt = make_optimizer("sgd", sp.param_groups(weight_decay=1e-2))
    opt.load_state_dict(copy.deepcopy(run.opt.state_dict()))
    sp.bind(opt)
    return Run(model, sp, opt, run.shape)


@pytest.mark.parametrize("steps", [0, 7])
@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_a_copied_run_continues_as_the_original_does(method: Method, steps: int) -> None:
    run = begin(conv_net(), method, IMAGE)
    run.advance(steps)
    twin = copied(run)
    assert twin.sp.model is twin.model
    before = copy.deepcopy(run.state())
    twin.advance(8)
    assert differences(run.state(), before) == []
    run.advance(8)
    assert differences(run.state(), twin.state()) == []
    assert run.sp.report().zeros == twin.sp.report().zeros
    inputs, _ = batch(0, IMAGE)
    assert torch.equal(run.sp.finalize()(inputs), twin.sp.finalize()(inputs))


def test_the_order_of_random_choices_is_copied_too() -> None:
    run = begin(mlp(), STR(start_sparsity=0.5), seed=3)
    torch.rand(5, generator=run.sp.generator)
    twin = copy.deepcopy(run.sp)
    assert twin.generator is not run.sp.generator
    assert torch.equal(torch.rand(5, generator=twin.generator), torch.rand(5, generator=run.sp.generator))


def test_a_copied_model_alone_keeps_its_sparsity_and_is_not_steered() -> None:
    run = begin(conv_net(), METHODS["target"], IMAGE)
    run.advance(5)
    model = copy.deepcopy(run.model)
    inputs, _ = batch(0, IMAGE)
    assert torch.equal(model(inputs), run.model(inputs))
    expected = model(inputs).detach()
    run.advance(5)
    assert torch.equal(model(inputs).detach(), expected)


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Recurrent(nn.LSTM(4, 5, bidirectional=True)),
    "gru": lambda: Recurrent(nn.GRU(4, 5)),
    "attention": Attending,
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_copy_right_after_a_training_forward(name: str) -> None:
    model = RECURRENT[name]()
    run = begin(model, STR(start_sparsity=0.5))
    data = torch.randn(2, 5, 8 if name == "attention" else 4)
    output = model(data)
    twin = copy.deepcopy((model, run.sp))
    assert torch.equal(twin[0](data), output)
    output.sum().backward()
    gradients = [each.grad for each in model.parameters()]
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
    run.sp.finalize()
    assert all(not module._forward_hooks for module in model.modules())
    copy.deepcopy(model)


def test_a_tied_weight_stays_tied_in_a_copy() -> None:
    model = Tied()
    run = begin(model, STR(start_sparsity=0.5), include=("embed", "middle", "head"))
    twin, sp = copy.deepcopy((model, run.sp))
    assert sp.finalize() is twin
    assert twin.embed.weight is twin.head.weight
    assert twin.embed.weight is not model.embed.parametrizations.weight.original


def test_finalize_leaves_copies_alone() -> None:
    run = begin(conv_net(), METHODS["target"], IMAGE)
    run.advance(5)
    inputs, _ = batch(0, IMAGE)
    best, averaged = copy.deepcopy(run.model), AveragedModel(run.model)
    expected = best.eval()(inputs)
    run.sp.finalize()
    assert torch.equal(best(inputs), expected)
    assert torch.equal(averaged.eval()(inputs), expected)
    assert [type(each) for each in run.model] == [type(each) for each in conv_net()]


# ----------------------------------------------------------------------------------------------------------- averaged models


def zeros_in(model: nn.Module) -> int:
    return sum(int((each.weight == 0).sum()) for each in model.modules() if isinstance(each, nn.Conv2d | nn.Linear))


@pytest.mark.parametrize("buffers", [False, True])
def test_an_averaged_model_prunes_by_its_own_averages(buffers: bool) -> None:
    method = AutoSparse(alpha=0.5, target_sparsity=0.7, backward_sparsity=0.2)
    run = begin(conv_net(), method, IMAGE)
    averaged = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=buffers)
    stored, threshold = run.sp.layers[0].stored, run.sp.thresholds()[0]
    expected = None
    for _ in range(4):
        run.advance(5)
        averaged.update_parameters(run.model)
        now = (stored.detach().clone(), threshold.detach().clone())
        expected = now if expected is None else tuple(0.5 * old + 0.5 * new for old, new in zip(expected, now, strict=True))
    assert expected is not None
    weight, bound = expected[0], torch.sigmoid(expected[1])
    by_hand = weight.sign() * (weight.abs() - bound).clamp_min(0)
    torch.testing.assert_close(averaged.module[0].weight, by_hand, rtol=1e-5, atol=1e-7)
    assert 0.5 < zeros_in(averaged.module) / run.sp.report().weights < 0.9


def test_an_averaged_model_becomes_plain_through_a_copy_of_the_run() -> None:
    run = begin(conv_net(), METHODS["target"], IMAGE)
    averaged = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for _ in range(4):
        run.advance(5)
        averaged.update_parameters(run.model)
    inputs, _ = batch(0, IMAGE)
    expected = averaged.eval()(inputs)
    keeper = copy.deepcopy(run.sp)
    keeper.model.load_state_dict(averaged.module.state_dict())
    sparsity = keeper.sparsity()
    assert sparsity == zeros_in(averaged.module) / run.sp.report().weights
    with pytest.warns(autosparse.SparsityWarning, match="recalibrate"):  # its batch norms saw other weights
        plain = keeper.finalize()
    assert list(plain.state_dict()) == list(conv_net().state_dict())
    assert torch.equal(plain.eval()(inputs), expected)


class Ema(nn.Module):
    """As timm's: a deep copy whose whole state is averaged, masks and counters included."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(model)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        for mean, value in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
            mean.copy_(0.5 * mean + 0.5 * value)


AVERAGES: dict[str, Callable[[nn.Module], Any]] = {
    "AveragedModel": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)),
    "with buffers": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True),
    "a copy of one's own": Ema,
}


@pytest.mark.parametrize("first", ["run", "average"])
@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize(
    "method", [METHODS["target"], autosparse.RigL(sparsity=0.7, update_every=2), autosparse.LTP(penalty_weight=1e-3)],
    ids=lambda method: method.about.name,
)  # fmt: skip
def test_an_average_becomes_plain_with_the_zeros_of_the_run(method: Method, name: str, first: str) -> None:
    run = begin(conv_net(), method, IMAGE)
    averaged = AVERAGES[name](run.model)
    for _ in range(4):
        run.advance(5)
        averaged.update_parameters(run.model)
    steps = [lambda: run.sp.finalize(), lambda: run.sp.finalize_average(averaged)]
    results = [step() for step in (steps if first == "run" else reversed(steps))]
    final, plain = results if first == "run" else reversed(results)
    assert plain is averaged.module
    assert list(plain.state_dict()) == list(conv_net().state_dict())
    assert [type(module) for module in plain.modules()] == [type(module) for module in conv_net().modules()]
    for layer in run.sp.layers:
        mean, weight = plain.get_submodule(layer.name).weight, layer.weight()
        assert not bool(mean[weight == 0].any())
        assert not torch.equal(mean, weight)
    assert 0.5 * zeros_in(final) < zeros_in(plain) < run.sp.report().weights
    plain(batch(0, IMAGE)[0]).sum().backward()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in plain.modules())
    pickle.dumps(plain)


def test_an_average_of_weights_that_store_their_zeros_is_the_average_by_hand() -> None:
    """RigL's effective weights are the stored ones: their average is masked by the last mask."""
    run = begin(mlp(), autosparse.RigL(sparsity=0.6, update_every=2))
    averaged = AVERAGES["a copy of one's own"](run.model)
    expected = [layer.effective().clone() for layer in run.sp.layers]
    for _ in range(3):
        run.advance(3)
        averaged.update_parameters(run.model)
        expected = [0.5 * mean + 0.5 * layer.effective() for mean, layer in zip(expected, run.sp.layers, strict=True)]
    plain = run.sp.finalize_average(averaged)
    for layer, mean in zip(run.sp.layers, expected, strict=True):
        assert torch.equal(plain.get_submodule(layer.name).weight, mean * layer.active())


def test_what_is_no_copy_of_the_run_is_refused() -> None:
    run = begin(mlp(), METHODS["target"])
    for other in (mlp(), run.model, AveragedModel(mlp())):
        with pytest.raises(ValueError, match="is no averaged copy of the sparsified model"):
            run.sp.finalize_average(other)


# --------------------------------------------------------------------------------------------------------------- torch.export

EXPORTED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "conv net": (conv_net, lambda: torch.randn(2, *IMAGE)),
    "attention": (Attending, lambda: torch.randn(2, 5, 8)),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_model_equals_the_eager_one(name: str) -> None:
    build, data = EXPORTED[name]
    model, inputs = build(), data()
    model(inputs)
    run = begin(model, STR(start_sparsity=0.5))
    model.eval()
    with torch.no_grad():
        eager = model(inputs)
        program = torch.export.export(model, (inputs,))
        torch.testing.assert_close(program.module()(inputs), eager, rtol=0, atol=1e-6)
        model(inputs)
        plain = torch.export.export(run.sp.finalize(), (inputs,))
        torch.testing.assert_close(plain.module()(inputs), eager, rtol=0, atol=1e-6)


# --------------------------------------------------------------------------------------------------------------- through files


def through_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_states_load_with_weights_only(method: Method, tmp_path: Path) -> None:
    run = begin(conv_net(), method, IMAGE, density_floor=0.25)
    run.advance(12)
    torch.save(run.state(), tmp_path / "run.pt")
    state = torch.load(tmp_path / "run.pt", weights_only=True)
    assert differences(state, run.state()) == []
    other = begin(conv_net(), method, IMAGE, density_floor=0.25)
    other.load(state)
    run.advance(4)
    other.advance(4)
    assert differences(other.state(), run.state()) == []
    assert untimed(other.sp.report()) == untimed(run.sp.report())


def test_a_state_is_a_snapshot() -> None:
    """What was saved does not change while training goes on."""
    run = begin(mlp(), METHODS["target"])
    run.advance(5)
    state = run.sp.state_dict()
    kept = copy.deepcopy(state)
    run.advance(5)
    assert differences(state, kept) == []


def test_a_loaded_state_is_not_shared_with_its_source() -> None:
    run = begin(mlp(), METHODS["target"])
    run.advance(5)
    state = run.sp.state_dict()
    kept = copy.deepcopy(state)
    other = begin(mlp(), METHODS["target"])
    other.sp.load_state_dict(state)
    other.advance(5)
    assert differences(state, kept) == []


def test_plain_states_travel_between_dense_and_sparsified_models(tmp_path: Path) -> None:
    run = begin(conv_net(), METHODS["target"], IMAGE)
    run.advance(20)
    plain = through_file(run.sp.dense_state_dict())
    model = conv_net()
    model.load_state_dict(plain)
    inputs, _ = batch(0, IMAGE)
    assert torch.equal(model.eval()(inputs), run.model.eval()(inputs))
    again = begin(conv_net(), STR(start_sparsity=0.8), IMAGE)
    again.sp.load_dense(plain)
    assert again.sp.sparsity() == pytest.approx(0.8, abs=0.01)
