"""Closures, several optimizers, schedulers, accumulation, and the thresholds' own parameter group."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import autosparse
from autosparse import STR, AutoSparse

from ..states import differences
from .training import Run, batch, begin, make_optimizer, mlp

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
    model, sp = copy.deepcopy((plain.model, plain.sp))
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
    sp.method = _Watching(sp.method, seen)

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


def test_a_warm_up_step_at_rate_zero_counts() -> None:
    run = begin(mlp(), METHOD)
    torch.optim.lr_scheduler.LambdaLR(run.opt, lambda step: min(1.0, step / 3))
    assert run.opt.param_groups[0]["lr"] == 0
    run.step()
    assert run.sp.step == run.sp.ledger.steps == 1


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_rehearsal_of_a_distributed_checkpoint_is_no_step(name: str) -> None:
    """torch fills an optimizer's state by a step with zero gradients; a controller that moved then would spoil the resume."""
    run = begin(mlp(), METHOD, optimizer=name)
    before = copy.deepcopy((run.model.state_dict(), run.sp.state_dict()))
    get_optimizer_state_dict(run.model, run.opt)
    assert run.opt.state
    assert differences((run.model.state_dict(), run.sp.state_dict()), before) == []
    run.step()
    assert run.sp.step == 1


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
