"""The thresholds' own parameter group: its decay by value, the user's own groups, and loud words where it is missing."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import STR, AutoSparse

from ..states import differences
from .training import batch, begin, conv_net, make_optimizer, mlp

METHOD = AutoSparse(alpha=0.5, dense_grad_every=2, target_sparsity=0.6)


def loss_of(model: nn.Module, step: int) -> Tensor:
    inputs, targets = batch(step, (10,))
    return nn.functional.cross_entropy(model(inputs), targets)


def sparsified(method: autosparse.methods.Method = METHOD, **options: Any) -> tuple[nn.Sequential, autosparse.Sparsifier]:
    model = mlp()
    return model, autosparse.sparsify(model, method, **{"epochs": 4, "steps_per_epoch": 5, **options})


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


def test_coupled_decay_moves_thresholds_by_the_rate_per_step_under_adam() -> None:
    """Adam divides the decay by its own size: whatever it is, s rises by lr a step where the loss has no gradient."""
    model, sp = sparsified(STR(s_init=-4.0))
    groups = sp.param_groups(weight_decay=0.0, threshold_decay=0.5, coupled_decay=True)
    opt = make_optimizer("adam", groups, lr=0.01)
    sp.bind(opt)
    for _ in range(3):
        opt.zero_grad()
        (0.0 * loss_of(model, 0)).backward()
        opt.step()
    for threshold in sp.thresholds():
        assert threshold.item() == pytest.approx(-4.0 + 3 * 0.01, rel=1e-5)


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
