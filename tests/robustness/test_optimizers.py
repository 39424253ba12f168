"""Closures, several optimizers, schedulers, accumulation, and the thresholds' own parameter group."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import STR, AutoSparse

from .training import Run, batch, begin, conv_net, differences, make_optimizer, mlp

METHOD = AutoSparse(alpha=0.5, dense_grad_every=2, target_sparsity=0.6)


def loss_of(model: nn.Module, step: int) -> Tensor:
    inputs, targets = batch(step, (10,))
    return nn.functional.cross_entropy(model(inputs), targets)


def sparsified(method: autosparse.methods.Method = METHOD, **options: Any) -> tuple[nn.Sequential, autosparse.Sparsifier]:
    model = mlp()
    return model, autosparse.sparsify(model, method, **{"epochs": 4, "steps_per_epoch": 5, **options})


# ------------------------------------------------------------------------------------------------------------ closures


@pytest.mark.parametrize("by_name", [False, True])
def test_sgd_with_a_closure_equals_sgd_without(by_name: bool) -> None:
    plain = begin(mlp(), METHOD)
    model = mlp()
    model.load_state_dict(plain.sp.dense_state_dict())
    twin = copy.deepcopy((plain.model, plain.sp))
    model, sp = twin
    opt = make_optimizer("sgd", sp.param_groups(weight_decay=1e-2))
    sp.bind(opt)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = loss_of(model, sp.step)
        loss.backward()
        return loss

    for _ in range(6):
        plain.step()
        returned = opt.step(closure=closure) if by_name else opt.step(closure)
        assert torch.is_tensor(returned)
    assert differences(Run(model, sp, opt, (10,)).state(), plain.state()) == []


def test_lbfgs_counts_one_step_a_call_and_looks_after_the_first_backward() -> None:
    model, sp = sparsified()
    opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    sp.bind(opt)
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        opt.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    first = float(opt.step(closure).detach())
    for _ in range(4):
        opt.step(closure)
    assert calls > 10
    assert (sp.step, sp.ledger.steps) == (5, 5)
    assert float(loss_of(model, 0).detach()) < first
    assert sp.sparsity() > 0.3


def test_methods_that_read_gradients_find_those_of_this_step_in_a_closure() -> None:
    """The pre-hook runs before the closure: without care a method would see the last step's gradient, or none."""
    model, sp = sparsified()
    opt = make_optimizer("sgd", sp.param_groups())
    sp.bind(opt)
    seen: list[Tensor] = []
    object.__setattr__(sp, "method", _Watching(sp.method, seen))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = loss_of(model, sp.step)
        loss.backward()
        return loss

    expected = []
    for step in range(3):
        gradient = torch.autograd.grad(loss_of(model, step), sp.layers[0].stored)[0]
        expected.append(gradient)
        opt.step(closure)
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


class _Watching:
    """A method that also notes the gradient that it is shown."""

    def __init__(self, method: autosparse.methods.Method, seen: list[Tensor]) -> None:
        self._method, self._seen = method, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def before_step(self, run: autosparse.Sparsifier) -> bool:
        self._seen.append(run.gradient(run.layers[0]).clone())
        return False


# ------------------------------------------------------------------------------------------- several optimizers, schedulers


def test_two_optimizers_bound_together_equal_one() -> None:
    one = begin(mlp(), METHOD)
    model, sp = copy.deepcopy((one.model, one.sp))
    groups = sp.param_groups(weight_decay=1e-2)
    weights, thresholds = make_optimizer("sgd", groups[:-1]), make_optimizer("sgd", groups[-1:])
    sp.bind(weights, thresholds)
    for _ in range(6):
        one.step()
        loss = loss_of(model, sp.step)
        for opt in (weights, thresholds):
            opt.zero_grad()
        loss.backward()
        for opt in (weights, thresholds):
            opt.step()
    assert sp.step == 6
    assert differences(model.state_dict(), one.model.state_dict()) == []
    assert differences(sp.state_dict(), one.sp.state_dict()) == []


def test_binding_again_replaces_the_first_binding() -> None:
    model, sp = sparsified()
    old, new = (make_optimizer("sgd", sp.param_groups()) for _ in range(2))
    sp.bind(old)
    sp.bind(new)
    for opt in (old, new):
        loss_of(model, 0).backward()
        opt.step()
    assert sp.step == 1


def test_schedulers_move_the_thresholds_rate_too() -> None:
    run = begin(mlp(), STR(start_sparsity=0.5), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(run.opt, milestones=[2], gamma=0.0)
    threshold = run.sp.thresholds()[0]
    values = [threshold.detach().clone()]
    for _ in range(4):
        run.step()
        scheduler.step()
        values.append(threshold.detach().clone())
    assert run.sp.step == 4
    assert not torch.equal(values[0], values[2])
    assert torch.equal(values[2], values[4])


def test_one_cycle_and_plateau_schedulers_do_not_hide_steps() -> None:
    run = begin(mlp(), STR(start_sparsity=0.5))
    cycle = torch.optim.lr_scheduler.OneCycleLR(run.opt, max_lr=0.1, total_steps=20)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(run.opt)
    for _ in range(5):
        loss = run.step()
        cycle.step()
    plateau.step(loss)
    run.sp.end_epoch(loss=loss)
    assert (run.sp.step, run.sp.epoch) == (5, 1)


def test_accumulation_counts_optimizer_steps_and_equals_the_whole_batch() -> None:
    model = mlp().double()
    whole = begin(model, METHOD)
    parts_model, parts_sp = copy.deepcopy((whole.model, whole.sp))
    opt = make_optimizer("sgd", parts_sp.param_groups(weight_decay=1e-2))
    parts_sp.bind(opt)
    for _ in range(5):
        inputs, targets = batch(whole.sp.step, (10,), torch.float64)
        whole.step()
        opt.zero_grad()
        for part in range(4):
            rows = slice(2 * part, 2 * part + 2)
            (nn.functional.cross_entropy(parts_model(inputs[rows]), targets[rows]) / 4).backward()
        opt.step()
    assert parts_sp.step == 5
    parts_sp.end_epoch()
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(parts_model.state_dict()[name], value, rtol=0, atol=1e-12)


def test_batches_counted_as_steps_are_called_out() -> None:
    model, sp = sparsified(STR(), steps_per_epoch=8)
    opt = make_optimizer("sgd", sp.param_groups(weight_decay=1e-2))
    sp.bind(opt)
    for _ in range(2):
        loss_of(model, 0).backward()
        opt.step()
    with pytest.warns(autosparse.SparsityWarning, match="the first epoch had 2 optimizer steps, steps_per_epoch is 8"):
        sp.end_epoch()


# ------------------------------------------------------------------------------------------------------ the thresholds' decay


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_threshold_decay_is_decoupled_under_adam(name: str) -> None:
    """Without gradients s shrinks by (1 - lr * decay) a step, by nothing else."""
    model, sp = sparsified(STR(s_init=-4.0))
    opt = make_optimizer(name, sp.param_groups(weight_decay=0.0, threshold_decay=0.5), lr=0.01)
    sp.bind(opt)
    for _ in range(3):
        opt.zero_grad()
        (0.0 * loss_of(model, 0)).backward()
        opt.step()
    for threshold in sp.thresholds():
        assert threshold.item() == pytest.approx(-4.0 * (1 - 0.005) ** 3, rel=1e-6)


def test_threshold_decay_is_coupled_under_sgd_as_in_the_paper() -> None:
    model, sp = sparsified(STR(s_init=-4.0))
    opt = torch.optim.SGD(sp.param_groups(weight_decay=0.0, threshold_decay=0.5), lr=0.1, momentum=0.9)
    sp.bind(opt)
    s, velocity = -4.0, 0.0
    for _ in range(3):
        opt.zero_grad()
        (0.0 * loss_of(model, 0)).backward()
        opt.step()
        velocity = 0.9 * velocity + 0.5 * s
        s -= 0.1 * velocity
    assert sp.thresholds()[0].item() == pytest.approx(s, rel=1e-6)


def test_total_decay_gives_the_asked_number_of_nats() -> None:
    model, sp = sparsified(STR(s_init=-4.0), epochs=10, steps_per_epoch=10)
    rates = [0.01] * 100
    decay = autosparse.threshold_decay(total=1.0, lrs=rates)
    opt = torch.optim.SGD(sp.param_groups(threshold_decay=decay), lr=0.01)
    sp.bind(opt)
    for _ in rates:
        opt.zero_grad()
        (0.0 * loss_of(model, 0)).backward()
        opt.step()
    assert sp.thresholds()[0].item() == pytest.approx(-4.0 * math.exp(-1), rel=0.01)


def test_a_threshold_in_no_optimizer_is_refused_at_bind() -> None:
    model, sp = sparsified()
    weights = [parameter for name, parameter in model.named_parameters() if "threshold" not in name]
    with pytest.raises(ValueError, match="lacks 3 of 3 learned thresholds") as error:
        sp.bind(torch.optim.SGD(weights, lr=0.1))
    assert "sp.param_groups(weight_decay=...)" in str(error.value)
    before = torch.optim.SGD(mlp().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="make it after sparsify"):
        sp.bind(before)


def test_a_threshold_lost_after_bind_is_refused_at_the_first_step() -> None:
    model, sp = sparsified()
    opt = make_optimizer("sgd", sp.param_groups())
    sp.bind(opt)
    opt.param_groups.pop()
    loss_of(model, 0).backward()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="lacks 3 of 3 learned thresholds"):
        opt.step()
    assert differences(model.state_dict(), before) == []


def test_a_failed_first_step_says_so_again() -> None:
    model, sp = sparsified()
    opt = make_optimizer("sgd", sp.param_groups())
    sp.bind(opt)
    lost = opt.param_groups.pop()
    loss_of(model, 0).backward()
    for _ in range(2):
        with pytest.raises(ValueError, match="lacks 3 of 3"):
            opt.step()
    opt.param_groups.append(lost)
    opt.step()
    assert sp.step == 1


def test_no_decay_is_called_out_once_at_the_first_step() -> None:
    model, sp = sparsified(STR())
    opt = make_optimizer("sgd", sp.param_groups())
    sp.bind(opt)
    loss_of(model, 0).backward()
    with pytest.warns(autosparse.SparsityWarning, match="the thresholds have no weight decay"):
        opt.step()
    opt.step()
    assert sp.step == 2


@pytest.mark.parametrize("method", [STR(g="identity"), STR(threshold="shared"), STR(target_sparsity=0.5)])
def test_no_decay_is_fine_where_decay_is_not_the_engine(method: STR) -> None:
    begin(mlp(), method, weight_decay=0.0).step()


# --------------------------------------------------------------------------------------------------------- param_groups


def ids(groups: list[dict[str, Any]]) -> list[list[int]]:
    return [[id(each[1] if isinstance(each, tuple) else each) for each in group["params"]] for group in groups]


def test_default_groups_are_the_weights_and_the_thresholds() -> None:
    model, sp = sparsified(STR())
    weights, thresholds = sp.param_groups(weight_decay=0.1)
    assert (weights["weight_decay"], thresholds["weight_decay"]) == (0.1, 0.1)
    assert ids([thresholds]) == [[id(each) for each in sp.thresholds()]]
    everything = {id(each) for each in model.parameters()}
    assert set(ids([weights])[0]) == everything - set(ids([thresholds])[0])
    assert sp.param_groups(weight_decay=0.1, threshold_decay=0.3)[-1]["weight_decay"] == 0.3


@pytest.mark.parametrize("named", [False, True])
def test_own_groups_keep_their_options_and_lose_the_thresholds(named: bool) -> None:
    model = conv_net()
    sp = autosparse.sparsify(model, STR(), epochs=1, steps_per_epoch=1)
    norms = [(name, each) for name, each in model.named_parameters() if name.startswith("1.")]
    rest = [(name, each) for name, each in model.named_parameters() if not name.startswith("1.")]
    pick = (lambda pairs: pairs) if named else (lambda pairs: [each for _, each in pairs])
    own = [
        {"params": pick(norms), "weight_decay": 0.0, "lr": 0.5},
        {"params": iter(pick(rest)), "weight_decay": 0.2, "momentum": 0.7},
    ]
    groups = sp.param_groups(own, threshold_decay=0.3)
    opt = torch.optim.SGD(groups, lr=0.1)
    sp.bind(opt)
    first, second, third = opt.param_groups
    assert (first["lr"], first["weight_decay"], first["momentum"]) == (0.5, 0.0, 0)
    assert (second["lr"], second["weight_decay"], second["momentum"]) == (0.1, 0.2, 0.7)
    assert (third["lr"], third["weight_decay"]) == (0.1, 0.3)
    assert ids([third]) == [[id(each) for each in sp.thresholds()]]
    assert [id(each) for each in first["params"]] == [id(each) for _, each in norms]
    assert len(second["params"]) == len(rest) - len(sp.thresholds())
    if named:
        assert third["param_names"] == [name for name, _ in model.named_parameters() if name.endswith("threshold")]
        assert "0.parametrizations.weight.original" in second["param_names"]


def test_parameters_given_as_a_flat_list_or_as_names() -> None:
    model, sp = sparsified(STR())
    flat = sp.param_groups(model.parameters(), weight_decay=0.1)
    assert ids(flat) == ids(sp.param_groups(weight_decay=0.1))
    named = sp.param_groups(model.named_parameters(), weight_decay=0.1)
    assert ids(named) == ids(flat)
    sp.bind(torch.optim.AdamW(named))


def test_a_group_of_thresholds_alone_disappears() -> None:
    model, sp = sparsified(STR())
    weights = [each for name, each in model.named_parameters() if not name.endswith("threshold")]
    groups = sp.param_groups([{"params": sp.thresholds(), "lr": 9.0}, {"params": weights}], weight_decay=0.1)
    assert [len(group["params"]) for group in groups] == [len(weights), 3]
    assert "lr" not in groups[-1]


@pytest.mark.parametrize("argument", ["weight_decay", "threshold_decay"])
def test_negative_decay_is_refused(argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument} = -0.1; it must be at least 0"):
        sparsified(STR())[1].param_groups(**{argument: -0.1})


def test_bind_refuses_what_is_no_optimizer() -> None:
    sp = sparsified()[1]
    with pytest.raises(TypeError, match=r"bind takes a torch\.optim\.Optimizer, got dict"):
        sp.bind({})
    with pytest.raises(TypeError, match="bind needs the optimizer"):
        sp.bind()


def test_a_wrapped_optimizer_is_unwrapped() -> None:
    class Wrapper:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    model, sp = sparsified()
    opt = make_optimizer("sgd", sp.param_groups())
    sp.bind(Wrapper(opt))
    loss_of(model, 0).backward()
    opt.step()
    assert sp.step == 1
