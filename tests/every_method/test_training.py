"""Every method trains, keeps its promised counts, costs what its formula says and leaves a plain sparse net."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import pytest
import torch
from torch import nn

import autosparse
from autosparse.layer import Layer
from autosparse.methods import Budgeted, GradMax

from .running import COMBINATIONS, NETS, active, begin, counts, make_net, trajectory
from .settings import ROWS, STEPS, TOTAL

NAMES = autosparse.list_methods()
LATE = {  # at their promised sparsity after a ramp, a search or several rounds only
    "acdc", "cs", "dpf", "feather", "feather+ga", "gmp", "gradmax", "granet", "lottery", "ltp", "optg",
    "prune_retrain", "st3", "st3+ga",
}  # fmt: skip
BY_CHANNELS = {"3sp", "gdp", "gradmax"}
every_run = pytest.mark.parametrize(("name", "net", "optimizer"), [(name, *each) for name in NAMES for each in COMBINATIONS])


def expected_counts(name: str, layers: list[Layer]) -> list[int] | int | range | None:
    promise = ROWS[name].keeps
    return promise(layers) if promise else None


def as_promised(found: list[int], expected: list[int] | int | range | None) -> bool:
    if expected is None:
        return True
    if isinstance(expected, range):
        return sum(found) in expected
    return sum(found) == expected if isinstance(expected, int) else found == expected


@every_run
def test_trains_and_keeps_its_promise(name: str, net: str, optimizer: str) -> None:
    """The loss falls on real images; the promised number of weights is active, where the table says so at every step."""
    ran = trajectory(name, net, optimizer)
    first, last = ran.losses[: STEPS // 2], ran.losses[-STEPS // 2 :]
    assert all(map(math.isfinite, ran.losses))
    assert sum(last) < 0.95 * sum(first)
    expected = expected_counts(name, ran.run.sp.layers)
    assert as_promised(ran.after_last, expected)
    if ROWS[name].throughout:
        assert [found for found in ran.counts if not as_promised(found, expected)] == []
    total = sum(layer.numel for layer in ran.run.sp.layers)
    assert ran.run.sp.sparsity() == (total - sum(ran.after_last)) / total
    assert 0.05 < ran.run.sp.sparsity() < 0.95
    assert autosparse.methods.describe(name).budget == ("learned" if expected is None else "budgeted")


@pytest.mark.parametrize("name", NAMES)
def test_at_target_means_the_promised_sparsity(name: str) -> None:
    """Not before a ramp or a search has ended; SWAT's counts drift between its updates."""
    run = begin(name, "mlp", "sgd")
    run.score()
    seen: list[tuple[bool, float]] = []
    run.advance(TOTAL, watch=lambda: seen.append((run.sp.at_target, run.sp.sparsity())))
    seen.append((run.sp.at_target, run.sp.sparsity()))
    assert seen[-1][0]
    assert seen[0][0] == (name not in LATE)
    if ROWS[name].keeps and name != "swat":
        assert all(abs(sparsity - seen[-1][1]) <= 0.005 for reached, sparsity in seen if reached)


@every_run
def test_zeros_are_stored_where_the_table_says_so(name: str, net: str, optimizer: str) -> None:
    """After steps with momentum and decay: pruned weights are exactly 0, or kept as they are in case they return."""
    layers = trajectory(name, net, optimizer).run.sp.layers
    stored = torch.cat([layer.weight()[~active(layer)] for layer in layers])
    assert len(stored)
    assert bool((stored == 0).all()) == ROWS[name].holds_zeros
    assert bool((stored != 0).all()) != ROWS[name].holds_zeros


@every_run
def test_costs_equal_the_formula(name: str, net: str, optimizer: str) -> None:
    """Train F and Test F from the densities that this test has seen, the layers' MACs and the formula of the table."""
    ran, row = trajectory(name, net, optimizer), ROWS[name]
    sp = ran.run.sp
    sizes = {layer.name: layer.numel for layer in sp.layers}
    spent = dict.fromkeys(sizes, 0.0)
    for moment, found in zip(ran.moments, ran.counts, strict=True):
        for layer, count in zip(sizes, found, strict=True):
            spent[layer] += sum(row.passes(count / sizes[layer], moment))
    macs = {layer.name: layer.macs for layer in autosparse.profile(make_net(net), torch.zeros(1, 1, 8, 8)).layers}
    assert set(sizes) <= set(macs)
    scoring = row.scoring_steps[net] if isinstance(row.scoring_steps, Mapping) else row.scoring_steps
    if name in BY_CHANNELS:  # attention has as many heads as its queries
        heads = {layer: layer.replace(".products", ".query") for layer in macs if layer.endswith(".products")}
        spent.update({layer: spent[queries] for layer, queries in heads.items()})
    train = sum(each * (spent.get(layer, 3.0 * TOTAL) + 3 * scoring) for layer, each in macs.items())
    assert sp.cost.train_fraction == pytest.approx(train / (3 * TOTAL * sum(macs.values())), rel=1e-9)
    density = {layer: count / sizes[layer] for layer, count in zip(sizes, ran.after_last, strict=True)}
    if name in BY_CHANNELS:
        density.update({layer: density[queries] for layer, queries in heads.items()})
    test = sum(each * density.get(layer, 1.0) for layer, each in macs.items())
    assert sp.cost.test_fraction == pytest.approx(test / sum(macs.values()), rel=1e-9)


@every_run
def test_finalize_bakes_the_effective_weights_in(name: str, net: str, optimizer: str) -> None:
    ran = trajectory(name, net, optimizer)
    model, sp = copy.deepcopy((ran.run.model, ran.run.sp))
    effective = {layer.name: (layer.effective(), active(layer).clone()) for layer in sp.layers}
    sparsity, dense, images = sp.sparsity(), sp.dense_state_dict(), ran.run.data(0)[0]
    outputs = model.eval()(images)
    fresh = make_net(net)
    assert sp.finalize() is model
    assert [(key, each.shape) for key, each in model.state_dict().items()] == [
        (key, each.shape) for key, each in fresh.state_dict().items()
    ]
    assert [type(module) for module in model.modules()] == [type(module) for module in fresh.modules()]
    modules = dict(model.named_modules())
    zeros = idle = 0
    for layer, (value, kept) in effective.items():
        weight = modules[layer].weight
        assert isinstance(weight, nn.Parameter)
        assert torch.equal(weight, value)
        assert torch.equal(weight, dense[f"{layer}.weight"])
        zeros += int((weight == 0).sum())
        idle += int((weight[kept] == 0).sum())
    assert (zeros - idle) / sum(value.numel() for value, _ in effective.values()) == sparsity
    # grown where no gradient comes, as beside an image of one pixel
    assert idle == 0 or isinstance(sp.method, Budgeted | GradMax)
    assert torch.equal(model(images), outputs)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", NAMES)
def test_steps_in_bfloat16_autocast(name: str, net: str) -> None:
    """Autocast changes the products, not what is stored: float32 weights, exact counts, a finite loss near the exact one."""
    run, exact = begin(name, net, "sgd"), begin(name, net, "sgd")
    losses = []
    for each in (run, exact):
        each.score()
    for _ in range(5):
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(run.backward())
        run.opt.step()
        run.done += 1
    assert losses[0] == pytest.approx(exact.backward(), rel=0.02)
    assert all(map(math.isfinite, losses))
    assert run.sp.step == 5
    for parameter in run.model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.isfinite().all()
    if ROWS[name].throughout:
        assert as_promised(counts(run), expected_counts(name, run.sp.layers))
