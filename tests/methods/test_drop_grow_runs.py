"""Whole runs of the drop-and-grow family: budgets and conventions, zeros that stay, costs, fields that matter, bad input."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autosparse import Sparsifier, SparsityWarning, distributions, sparsify
from autosparse.methods.dsr import DSR
from autosparse.methods.families.budget import Budgeted
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.methods.gmp import GMP
from autosparse.methods.mest import MEST
from autosparse.methods.random import Random
from autosparse.methods.rigl import RigL
from autosparse.methods.set import SET
from autosparse.methods.snfs import SNFS

from .numpy_net import batches, loss_of

FAMILY: dict[str, Budgeted] = {
    "random": Random(sparsity=0.8),
    "rigl": RigL(sparsity=0.8, update_every=3),
    "set": SET(sparsity=0.8, update_every=3),
    "snfs": SNFS(sparsity=0.8, update_every=3),
    "dsr": DSR(sparsity=0.8, update_every=2, threshold=0.02),
    "mest": MEST(sparsity=0.8, mutation=(0.1, 0.05), update_epochs=1),
    "mest-soft": MEST(sparsity=0.8, soft=True, mutation=(0.1, 0.05), update_epochs=1),
}


def deep_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)).double()


def start(method: Budgeted, optimizer: str = "SGD", **settings: Any) -> tuple[Sparsifier, torch.optim.Optimizer]:
    sp = sparsify(deep_net(), method, epochs=5, steps_per_epoch=4, **settings)
    groups = sp.param_groups(weight_decay=1e-3)
    bound: torch.optim.Optimizer = (
        torch.optim.SGD(groups, lr=0.05, momentum=0.9) if optimizer == "SGD" else torch.optim.AdamW(groups, lr=0.01)
    )
    sp.bind(bound)
    return sp, bound


def train(sp: Sparsifier, optimizer: torch.optim.Optimizer, steps: int = 20) -> None:
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss_of(sp.model(x), y).backward()
        optimizer.step()


def counts(sp: Sparsifier) -> list[int]:
    return [int(mask_of(layer).sum()) for layer in sp.layers]


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("name", FAMILY)
def test_budgets_are_exact_and_pruned_weights_stay_zero(name: str, optimizer: str) -> None:
    method = FAMILY[name]
    sp, bound = start(method, optimizer)
    shapes = {layer.name: tuple(layer.shape) for layer in sp.layers}
    promised = list(distributions.counts(shapes, distributions.distribute(method.distribution, shapes, 0.8)).values())
    for x, y in batches(20):
        bound.zero_grad()
        loss_of(sp.model(x), y).backward()
        bound.step()
        if name in ("snfs", "dsr"):
            assert sum(counts(sp)) == sum(promised)
        elif name != "mest-soft" or sp.step >= 15:
            assert counts(sp) == promised
        for layer in sp.layers:
            pruned = ~mask_of(layer)
            assert not layer.weight()[pruned].any()
            if name != "snfs":
                states = [value for value in sp.optimizer_state(layer).values() if value.shape == layer.shape]
                assert states
                assert not any(value[pruned].any() for value in states)


def test_a_pruned_weight_is_not_revived_by_momentum_that_it_had() -> None:
    sp, optimizer = start(SET(sparsity=0.8, update_every=2, update_end=0.1))
    before = [mask_of(layer).clone() for layer in sp.layers]
    train(sp, optimizer)
    dropped = [old & ~mask_of(layer) for old, layer in zip(before, sp.layers, strict=True)]
    assert any(bool(gone.any()) for gone in dropped)
    for gone, layer in zip(dropped, sp.layers, strict=True):
        assert not layer.weight()[gone].any()
        assert not sp.optimizer_state(layer)["momentum_buffer"][gone].any()


def test_first_and_last_layers_follow_each_paper() -> None:
    def sparse(method: Budgeted) -> list[str]:
        return [layer.name for layer in start(method)[0].layers]

    for kind in (Random, RigL):
        assert sparse(kind()) == ["2", "4"]
        assert sparse(kind(distribution="erk", sparsity=0.5)) == ["0", "2", "4"]
        assert sparse(kind(dense_first=False)) == ["0", "2", "4"]
        assert sparse(kind(dense_last=True)) == ["2"]
    assert sparse(MEST()) == ["2", "4"]
    assert sparse(SET()) == sparse(SNFS()) == sparse(DSR()) == ["0", "2", "4"]


@pytest.mark.parametrize("kind", [RigL, SNFS, DSR, MEST])
def test_dense_layers_lie_outside_an_erk_budget_and_stay_dense(kind: type[Budgeted]) -> None:
    often = {MEST: {"update_epochs": 1}}.get(kind, {"update_every": 2})
    method = kind(sparsity=0.5, distribution="erk", dense_first=True, **often)
    sp, optimizer = start(method)
    first = sp.layers[0].weight().clone()
    assert counts(sp)[0] == 240
    assert sum(counts(sp)) == 240 + 192  # all of the first layer, half of 320 + 64
    train(sp, optimizer, 1)
    assert not torch.equal(sp.layers[0].weight(), first)
    train(sp, optimizer, 12)
    assert counts(sp)[0] == 240
    assert sum(counts(sp)) == 432


def test_loading_a_dense_checkpoint_keeps_the_masks_of_the_seed() -> None:
    state = {name: value + 1 for name, value in deep_net().state_dict().items()}
    sp, _ = start(Random(sparsity=0.8), seed=7)
    before = [mask_of(layer).clone() for layer in sp.layers]
    sp.load_dense(state)
    for layer, mask in zip(sp.layers, before, strict=True):
        assert torch.equal(mask_of(layer), mask)
        assert torch.equal(layer.weight(), state[f"{layer.name}.weight"] * mask)
    other, _ = start(Random(sparsity=0.8), seed=8)
    assert not torch.equal(mask_of(other.layers[0]), before[0])


# 12 x 20 (dense), 20 x 16 and 16 x 4 multiplications; 20 % of the last two is 64 and 13 weights.
COSTS = {
    "random": 3 * (240 + 64 + 13) / (3 * 624),
    "set": 3 * (240 + 64 + 13) / (3 * 624),
    # 20 steps with updates at 3, 6, 9, 12, 15: fifteen cost 3 f_S, five cost 2 f_S + f_D
    "rigl": (15 * 3 * 317 + 5 * (2 * 317 + 624)) / (20 * 3 * 624),
    "snfs": (2 * 317 + 624) / (3 * 624),
    "mest": 3 * (240 + 64 + 13) / (3 * 624),
    # 30 % (96 and 19) until step 12 of 20, 25 % (80 and 16) until 15
    "mest-soft": (12 * (240 + 96 + 19) + 3 * (240 + 80 + 16) + 5 * 317) / (20 * 624),
}


@pytest.mark.parametrize("name", COSTS)
def test_the_ledger_follows_the_formula(name: str) -> None:
    changes: dict[str, Any] = {"dense_first": True}
    if name in ("set", "snfs"):
        changes |= {"distribution": "uniform", "update_every": 100}  # so that layers keep their counts
    sp, optimizer = start(dataclasses.replace(FAMILY[name], **changes), example_input=torch.zeros(1, 12).double())
    train(sp, optimizer)
    assert sp.cost.train_fraction == pytest.approx(COSTS[name], rel=1e-9)


MEST_RUN = MEST(sparsity=0.6, mutation=(0.2, 0.1), stages=(0.5, 0.75), update_epochs=2)
FIELDS: list[tuple[Budgeted, str, Any]] = [
    (Random(sparsity=0.8), "sparsity", 0.7),
    (Random(sparsity=0.8), "distribution", "er"),
    (Random(sparsity=0.8), "dense_first", False),
    (Random(sparsity=0.8), "dense_last", True),
    (RigL(sparsity=0.8, update_every=3), "update_every", 4),
    (RigL(sparsity=0.8, update_every=3), "drop_fraction", 0.6),
    (RigL(sparsity=0.8, update_every=3), "update_end", 0.3),
    (SET(sparsity=0.8), "update_every", 3),
    (SET(sparsity=0.8), "drop_fraction", 0.6),
    (SET(sparsity=0.8), "update_end", 0.5),
    (SET(sparsity=0.8), "drop_decay", "cosine"),
    (SET(sparsity=0.8), "drop_by", "signed"),
    (SNFS(sparsity=0.8), "update_every", 3),
    (SNFS(sparsity=0.8), "drop_fraction", 0.2),
    (SNFS(sparsity=0.8), "final_drop_fraction", 0.3),
    (SNFS(sparsity=0.8), "update_end", 0.5),
    (DSR(sparsity=0.8, update_every=2, threshold=0.02), "threshold", 0.1),
    (DSR(sparsity=0.8, update_every=2, threshold=0.02), "prune_fraction", 0.5),
    (DSR(sparsity=0.8, update_every=2, threshold=0.02), "tolerance", 0.9),
    (DSR(sparsity=0.8, update_every=2, threshold=0.02), "update_every", 3),
    (DSR(sparsity=0.8, update_every=2, threshold=0.02), "doublings", ()),
    (DSR(sparsity=0.8, update_every=2, threshold=0.02), "update_end", 0.5),
    (MEST_RUN, "soft", True),
    (MEST_RUN, "mutation", (0.2, 0.2)),
    (MEST_RUN, "stages", (0.2, 0.3)),
    (MEST_RUN, "update_epochs", 1),
    (MEST_RUN, "gradient_weight", 5.0),
]


def trajectory(method: Budgeted) -> list[Tensor]:
    sp, optimizer = start(method)
    train(sp, optimizer)
    return [parameter.detach().clone() for parameter in sp.model.parameters()]


@pytest.mark.parametrize(("method", "field", "value"), FIELDS)
def test_every_field_changes_the_run(method: Budgeted, field: str, value: Any) -> None:
    changed = trajectory(dataclasses.replace(method, **{field: value}))
    assert any(not torch.equal(one, other) for one, other in zip(trajectory(method), changed, strict=True))


def test_every_field_is_among_those_tried() -> None:
    for kind in (Random, RigL, SET, SNFS, DSR, MEST):
        tried = {field for method, field, _ in FIELDS if type(method) is kind or type(method) is Random}
        assert {field.name for field in dataclasses.fields(kind)} <= tried


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (RigL, {"sparsity": 1.0}, "sparsity = 1.0; it is the fraction of zeros"),
        (RigL, {"sparsity": -0.1}, "sparsity = -0.1"),
        (RigL, {"distribution": "even"}, "distribution = 'even'; allowed: uniform, er, erk"),
        (RigL, {"update_every": 0}, "update_every = 0; it must be at least 1"),
        (RigL, {"drop_fraction": 0.0}, "drop_fraction = 0.0"),
        (RigL, {"update_end": 1.5}, "update_end = 1.5"),
        (SET, {"drop_decay": "linear"}, "drop_decay = 'linear'; allowed: constant, cosine"),
        (SET, {"drop_by": "size"}, "drop_by = 'size'; allowed: magnitude, signed"),
        (SNFS, {"final_drop_fraction": 0.6}, "final_drop_fraction = 0.6; allowed: 0 to drop_fraction = 0.5"),
        (DSR, {"threshold": 0.0}, "threshold = 0.0"),
        (DSR, {"prune_fraction": 1.0}, "prune_fraction = 1.0"),
        (DSR, {"tolerance": -0.1}, "tolerance = -0.1"),
        (DSR, {"update_every": 0}, "update_every = 0"),
        (DSR, {"update_end": 0.0}, "update_end = 0.0"),
        (DSR, {"doublings": (0.5, 1.0)}, r"doublings = \(0.5, 1.0\)"),
        (MEST, {"mutation": (0.1,)}, "one part of the run for each"),
        (MEST, {"stages": (0.7, 0.6)}, "stages = .* rising"),
        (MEST, {"mutation": (-0.1, 0.0)}, "rates must be at least 0"),
        (MEST, {"sparsity": 0.99}, "a mutation of 0.02 asks for a sparsity of 1.01"),
        (MEST, {"sparsity": 0.01, "soft": True}, "a mutation of 0.05 asks for a sparsity of -0.04"),
        (MEST, {"update_epochs": 0}, "update_epochs = 0"),
        (MEST, {"gradient_weight": -1.0}, "gradient_weight = -1.0"),
    ],
)
def test_bad_fields_are_refused(kind: type[Budgeted], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**fields)


# In runs of 5 epochs of 4 steps. With the value that the warning names, the first regular update comes at `step`.
@pytest.mark.parametrize(
    ("method", "field", "most", "step"),
    [
        (RigL(), "update_every", 14, 14),  # at update_end, 0.75 of 20, nothing would be replaced any more
        (SET(update_every=20), "update_every", 19, 19),
        (DSR(), "update_every", 5, 5),  # the period doubles after a quarter of the run
        (GMP(), "update_every", 11, 15),  # between the ends of the ramp, steps 4 and 16
        (MEST(), "update_epochs", 3, 12),  # the last stage ends at 3.75 epochs
    ],
)
def test_runs_too_short_for_an_update_warn_with_the_number_to_set(method: Budgeted, field: str, most: int, step: int) -> None:
    message = f"{method.about.name} makes no regular update of its masks in this run: {field} is {getattr(method, field)}; "
    with pytest.warns(SparsityWarning, match=f"{message}set {field} to at most {most}$"):
        start(method)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SparsityWarning)
        sp, optimizer = start(dataclasses.replace(method, **{field: most}))
    train(sp, optimizer, step)
    assert isinstance(sp.method, Budgeted)
    assert sp.method.due(sp)


def test_a_run_of_two_steps_can_only_be_made_longer() -> None:
    with pytest.warns(SparsityWarning, match="update_every is 1000; train for more steps"):
        sparsify(deep_net(), DSR(), epochs=1, steps_per_epoch=2)
