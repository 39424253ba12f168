"""The magnitude family against plain NumPy transcriptions of its equations, and its semantics in hand-computed numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autosparse import sparsify
from autosparse.methods.annealing import GradientAnnealing
from autosparse.methods.dnw import DNW
from autosparse.methods.dpf import DPF
from autosparse.methods.families.base import Method
from autosparse.methods.families.budget import Budgeted
from autosparse.methods.gmp import GMP
from autosparse.methods.swat import SWAT
from autosparse.methods.topkast import TopKAST, TopKASTGA, TopKASTPP
from autosparse.parametrizations import Masked
from autosparse.sparsifier import Sparsifier

from .magnitude_twins import (
    DECAY,
    EPOCHS,
    LR,
    PER_EPOCH,
    STEPS,
    DNWGATwin,
    DNWTwin,
    DPFTwin,
    GMPTwin,
    SoftTwin,
    SWATTwin,
    TopKASTGATwin,
    TopKASTTwin,
    Twin,
    count_of,
)
from .numpy_net import NumpyNet, batches, loss_of, torch_net

ANY_ENDS: dict[str, Any] = {"dense_first": False, "dense_last": False}

TRANSCRIPTIONS: dict[str, tuple[Method, Callable[[NumpyNet], Twin]]] = {
    "topkast": (
        TopKAST(sparsity=0.8, backward_sparsity=0.5, exploration=0.02, **ANY_ENDS),
        lambda net: TopKASTTwin(net, 0.8, 0.5, 0.02),
    ),
    "topkast*": (
        TopKAST(sparsity=0.8, backward_sparsity=0.0, exploration=0.02, **ANY_ENDS),
        lambda net: TopKASTTwin(net, 0.8, 0.0, 0.02),
    ),
    "topkast+pp": (
        TopKASTPP(sparsity=0.7, backward_sparsity=0.4, exploration=0.02, power=1.5, **ANY_ENDS),
        lambda net: TopKASTTwin(net, 0.7, 0.4, 0.02, 1.5),
    ),
    "topkast+ga": (
        TopKASTGA(sparsity=0.8, backward_sparsity=0.3, exploration=0.0, ga=GradientAnnealing(alpha=0.6), **ANY_ENDS),
        lambda net: TopKASTGATwin(net, 0.8, 0.3, 0.0),
    ),
    "topkast+ga soft": (
        TopKASTGA(sparsity=0.8, exploration=0.0, ga=GradientAnnealing(alpha=0.6), soft=True, **ANY_ENDS),
        lambda net: SoftTwin(net, 0.8, 0.0, 0.0),
    ),
    "dnw": (DNW(sparsity=0.7), DNWTwin),
    "dnw with ga": (DNW(sparsity=0.7, ga=GradientAnnealing(alpha=0.9, schedule="linear", zero_epoch=3)), DNWGATwin),
    "gmp": (GMP(sparsity=0.8, last_sparsity=0.6, begin=0.2, end=0.75, update_every=4, dense_first=False), GMPTwin),
    "dpf": (DPF(sparsity=0.9, end=0.5, update_every=3, dense_last=False), DPFTwin),
    "swat": (SWAT(sparsity=0.75, activation_sparsity=0.6, update_every=3, dense_first=False), SWATTwin),
}


# ------------------------------------------------------------------------------------------------ torch side


def prepared(method: Method, model: nn.Module | None = None, decay: float = DECAY, **given: Any) -> tuple[Any, Any, Sparsifier]:
    model = torch_net() if model is None else model
    run = sparsify(model, method, epochs=EPOCHS, steps_per_epoch=PER_EPOCH, example_input=torch.zeros(1, 12).double(), **given)
    optimizer = torch.optim.SGD(run.param_groups(weight_decay=decay), lr=LR, momentum=0.9)
    run.bind(optimizer)
    return model, optimizer, run


def one_step(model: Any, optimizer: Any, run: Sparsifier, batch: tuple[Any, Any]) -> None:
    loss = loss_of(model(batch[0]), batch[1]) + run.penalty()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    if run.step % PER_EPOCH == 0:
        run.end_epoch()


def trained(method: Method, steps: int = STEPS) -> tuple[Any, Sparsifier]:
    model, optimizer, run = prepared(method)
    for batch in batches(steps):
        one_step(model, optimizer, run, batch)
    return model, run


def masked(run: Sparsifier, index: int = 0) -> Masked:
    found = run.layers[index].parametrization
    assert isinstance(found, Masked)
    return found


@pytest.mark.parametrize("name", TRANSCRIPTIONS)
def test_twenty_steps_match_numpy(name: str) -> None:
    method, make_twin = TRANSCRIPTIONS[name]
    model = torch_net()
    twin = make_twin(NumpyNet.like(model))
    _, optimizer, run = prepared(method, model)
    changed = False
    for step, (x, y) in enumerate(batches(STEPS)):
        before = [masked(run, index).mask.clone() for index in range(2)]
        one_step(model, optimizer, run, (x, y))
        twin.step(x.numpy(), y.numpy(), step)
        for index, layer in enumerate(run.layers):
            mask = masked(run, index).mask
            np.testing.assert_array_equal(mask.numpy(), twin.masks[layer.name], err_msg=f"{layer.name} at step {step}")
            np.testing.assert_allclose(layer.weight().numpy(), twin.net.weights[layer.name], atol=1e-6, rtol=0)
            np.testing.assert_allclose(layer.effective().numpy(), twin.effective(layer.name), atol=1e-6, rtol=0)
            changed |= not torch.equal(before[index], mask)
    assert changed


# ------------------------------------------------------------------------------------------------ semantics


def single(weights: list[float], method: Method, epochs: int = 1, steps: int = 4) -> tuple[nn.Linear, Sparsifier]:
    """One bias-free Linear with the given row of weights."""
    linear = nn.Linear(len(weights), 1, bias=False).double()
    linear.weight.data.copy_(torch.tensor([weights]))
    return linear, sparsify(linear, method, epochs=epochs, steps_per_epoch=steps)


def test_ties_go_to_the_lower_index_and_counts_are_exact() -> None:
    _, run = single([1.0, -1.0, 1.0, 1.0, -1.0, 0.5], TopKAST(sparsity=0.5, backward_sparsity=1 / 3))
    assert masked(run).mask.tolist() == [[True, True, True, False, False, False]]
    assert masked(run).receives.tolist() == [[True, True, True, True, False, False]]  # type: ignore[union-attr]


def test_half_a_weight_rounds_up() -> None:
    _, run = single([5.0, 4.0, 3.0, 2.0, 1.0], DNW(sparsity=0.5))
    assert run.layers[0].active().tolist() == [[True, True, True, False, False]]


def test_topkast_gradient_reaches_the_backward_set_only() -> None:
    linear, run = single([4.0, -3.0, 2.0, 1.0], TopKAST(sparsity=0.75, backward_sparsity=0.25, exploration=0.0))
    (linear(torch.tensor([[1.0, 10.0, 100.0, 1000.0]]).double())).sum().backward()
    assert run.layers[0].stored.grad.tolist() == [[1.0, 10.0, 100.0, 0.0]]  # type: ignore[union-attr]


def test_topkast_penalty_by_hand() -> None:
    _, run = single([4.0, -3.0, 2.0, 1.0], TopKAST(sparsity=0.75, backward_sparsity=0.25, exploration=0.1))
    penalty = run.penalty()
    assert isinstance(penalty, torch.Tensor)
    assert penalty.item() == pytest.approx(0.05 * (16 + (9 + 4) / 0.25))
    penalty.backward()  # type: ignore[no-untyped-call]
    expected = torch.tensor([[0.4, -0.3 / 0.25, 0.2 / 0.25, 0.0]]).double()
    torch.testing.assert_close(run.layers[0].stored.grad, expected, rtol=0, atol=1e-7)


def test_power_propagation_by_hand() -> None:
    linear, run = single([4.0, -0.25, 0.0, 1.0], TopKASTPP(sparsity=0.25, power=2.0, exploration=0.0))
    assert run.layers[0].weight().tolist() == [[2.0, -0.5, 0.0, 1.0]]
    assert run.layers[0].effective().tolist() == [[4.0, -0.25, 0.0, 1.0]]
    linear(torch.ones(1, 4).double()).sum().backward()
    # a |phi|^(a-1): zeros are absorbing, and their gradient is 0, not NaN
    assert run.layers[0].stored.grad.tolist() == [[4.0, 1.0, 0.0, 2.0]]  # type: ignore[union-attr]


def test_power_below_two_has_a_finite_gradient_at_zero() -> None:
    linear, run = single([4.0, 0.0], TopKASTPP(sparsity=0.0, power=1.375))
    (linear(torch.ones(1, 2).double()).sum() + run.penalty()).backward()
    assert run.layers[0].stored.grad[0, 1] == 0  # type: ignore[index]


def test_power_propagation_loads_and_returns_plain_weights() -> None:
    linear, run = single([4.0, -0.25, 0.0, 1.0], TopKASTPP(sparsity=0.5, power=2.0))
    run.load_dense({"weight": torch.tensor([[0.0, 9.0, -16.0, 1.0]]).double()})
    assert run.layers[0].weight().tolist() == [[0.0, 3.0, -4.0, 1.0]]
    run.finalize()
    assert linear.weight.tolist() == [[0.0, 9.0, -16.0, 0.0]]
    assert list(linear.state_dict()) == ["weight"]


def test_soft_topkast_shrinks_by_the_largest_pruned_magnitude() -> None:
    linear, run = single([5.0, -3.0, 2.0, 1.0], TopKASTGA(sparsity=0.5, soft=True, ga=GradientAnnealing(alpha=0.5)))
    assert run.layers[0].effective().tolist() == [[3.0, -1.0, 0.0, 0.0]]
    assert run.report().layers[0].threshold == 2.0
    linear(torch.ones(1, 4).double()).sum().backward()
    assert run.layers[0].stored.grad.tolist() == [[1.0, 1.0, 0.5, 0.5]]  # type: ignore[union-attr]


def test_a_weight_outside_the_mask_returns_when_it_grows() -> None:
    model, optimizer, run = prepared(DNW(sparsity=0.5))
    before = masked(run).mask.clone()
    with torch.no_grad():
        run.layers[0].stored[~before] += 10.0
    one_step(model, optimizer, run, batches(1)[0])
    assert masked(run).mask.sum() == before.sum()
    assert not (masked(run).mask & before).any()


def test_gmp_is_monotone_and_momentum_never_revives() -> None:
    model, optimizer, run = prepared(GMP(sparsity=0.9, begin=0.0, end=1.0, update_every=2, dense_first=False), decay=0.0)
    sums, gone = [], torch.zeros(16, 12, dtype=torch.bool)
    for batch in batches(STEPS):
        one_step(model, optimizer, run, batch)
        pruned = ~masked(run).mask
        assert pruned[gone].all()
        assert (run.layers[0].weight()[pruned] == 0).all()
        assert (run.optimizer_state(run.layers[0])["momentum_buffer"][pruned] == 0).all()
        gone = pruned
        sums.append(int(pruned.sum()))
    assert sums[-1] == 173  # 192 - round(19.2)
    assert sums == sorted(sums)
    assert len(set(sums)) > 5


def test_gmp_keeps_the_mask_of_the_last_update() -> None:
    _, run = trained(GMP(sparsity=0.9, begin=0.0, end=0.5, update_every=2, dense_first=False))
    assert [int(each) for each in run.counts()] == [19, 13]  # the last layer stops at 80 %: 12.8


def test_gmp_is_dense_before_its_ramp_and_starts_at_its_start_sparsity() -> None:
    method = GMP(sparsity=0.8, start_sparsity=0.5, begin=0.2, end=0.8, update_every=1, dense_first=False)
    model, optimizer, run = prepared(method)
    counts = []
    for batch in batches(5):
        one_step(model, optimizer, run, batch)
        counts.append(int(run.counts()[0]))
    assert counts[:4] == [192, 192, 192, 96]
    assert 38 < counts[4] < 96


def test_gmp_starts_anew_from_a_loaded_checkpoint() -> None:
    method = GMP(sparsity=0.75, start_sparsity=0.5, begin=0.0, dense_first=False)
    _, run = single([4.0, 3.0, 2.0, 1.0], method)
    assert run.layers[0].weight().tolist() == [[4.0, 3.0, 0.0, 0.0]]
    run.load_dense({"weight": torch.tensor([[1.0, 2.0, 3.0, 4.0]]).double()})
    assert run.layers[0].weight().tolist() == [[0.0, 0.0, 3.0, 4.0]]


def test_dpf_ranks_all_layers_together_and_no_layer_dies() -> None:
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    for linear, values in zip(model, ([9, 8, 7, 6, 5, 4, 3, 2], [0.1, 0.2, 0.3, 0.4], [1, 1, 1, 1]), strict=True):
        weight = linear.get_parameter("weight")
        weight.data.copy_(torch.tensor(values).reshape(weight.shape))
    run = sparsify(model, DPF(sparsity=0.75, start_sparsity=0.75), epochs=1, steps_per_epoch=10)
    assert [layer.name for layer in run.layers] == ["0", "1"]  # the last layer is dense
    assert run.layers[0].active().flatten().tolist() == [True, True] + [False] * 6
    assert run.layers[1].active().flatten().tolist() == [False, False, False, True]


def three() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 10))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (TopKAST(), ["2"]),
        (TopKASTPP(dense_first=False), ["0", "2"]),
        (TopKASTGA(dense_last=False), ["2", "4"]),
        (GMP(), ["2", "4"]),
        (DNW(), ["0", "2", "4"]),
        (DNW(dense_first=True), ["2", "4"]),
        (DPF(), ["0", "2"]),
        (SWAT(), ["2", "4"]),
    ],
)
def test_first_and_last_layers(method: Method, expected: list[str]) -> None:
    run = sparsify(three(), method, epochs=1, steps_per_epoch=1)
    assert [layer.name for layer in run.layers] == expected


def test_erk_leaves_dense_ends_outside_its_budget() -> None:
    run = sparsify(three(), DNW(sparsity=0.5, distribution="erk", dense_last=True), epochs=1, steps_per_epoch=1)
    assert [int(each) for each in run.counts()] == [129, 171, 200]  # half of the first 600, as 30 : 40
    run = sparsify(three(), TopKAST(distribution="erk"), epochs=1, steps_per_epoch=1)
    assert [int(each) for each in run.counts()] == [200, 80, 200]


# ------------------------------------------------------------------------------------------------ ledger

DENSE = 192 + 64


def fraction(first: tuple[float, float, float], second: tuple[float, float, float]) -> float:
    return (192 * sum(first) + 64 * sum(second)) / (3 * DENSE)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (
            TopKAST(sparsity=0.75, backward_sparsity=0.5, **ANY_ENDS),
            fraction((0.25, 0.25, 0.5), (0.25, 0.25, 0.5)),
        ),
        (TopKASTPP(sparsity=0.75, **ANY_ENDS), fraction((0.25, 0.25, 1.0), (0.25, 0.25, 1.0))),
        (
            TopKASTGA(sparsity=0.75, ga=GradientAnnealing(zero_epoch=1), **ANY_ENDS),
            (fraction((0.25, 0.25, 1.0), (0.25, 0.25, 1.0)) + 3 * 0.25) / 4,  # 1 epoch of 4 with alpha, then 3 f_S
        ),
        (DNW(sparsity=0.75, dense_first=True), fraction((1, 1, 1), (0.25, 0.25, 1))),
        (GMP(sparsity=0.75, begin=0.0, end=0.25, update_every=5), fraction((1, 1, 1), (0.4375,) * 3)),
        (
            DPF(sparsity=0.75, begin=0.0, end=0.25, update_every=5, dense_last=True),
            fraction((0.4375, 0.4375, 1), (1, 1, 1)),
        ),
        (SWAT(sparsity=0.75, activation_sparsity=0.5, update_every=1), fraction((1, 1, 1), (0.25, 0.25, 0.5))),
        (
            SWAT(sparsity=0.75, activation_sparsity=0.5, update_every=1, ga=GradientAnnealing(alpha=0.0)),
            fraction((1, 1, 1), (0.25, 0.25, 0.125)),
        ),
    ],
    ids=["topkast", "topkast+pp", "topkast+ga", "dnw", "gmp", "dpf", "swat", "swat at alpha 0"],
)
def test_train_fraction_is_the_hand_formula(method: Method, expected: float) -> None:
    _, run = trained(method)
    assert run.cost.train_fraction == pytest.approx(expected, abs=1e-12)


# ------------------------------------------------------------------------------------------------ fields and bad input

SMALL = {
    TopKAST: TopKAST(sparsity=0.7, backward_sparsity=0.4),
    DPF: DPF(update_every=3),
    GMP: GMP(update_every=3),
    SWAT: SWAT(),
}
GA = GradientAnnealing(alpha=0.3)


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (TopKAST, {"sparsity": 0.8}),
        (TopKAST, {"backward_sparsity": 0.0}),
        (TopKAST, {"exploration": 0.1}),
        (TopKAST, {"power": 1.2}),
        (TopKAST, {"soft": True}),
        (TopKAST, {"ga": GA}),
        (TopKAST, {"update_every": 7}),
        (TopKAST, {"distribution": "er", "dense_last": False}),
        (TopKAST, {"dense_first": False}),
        (TopKAST, {"dense_last": False}),
        (GMP, {"start_sparsity": 0.5}),
        (GMP, {"begin": 0.0}),
        (GMP, {"end": 0.5}),
        (GMP, {"last_sparsity": 0.5}),
        (GMP, {"last_sparsity": None, "sparsity": 0.9}),
        (GMP, {"update_every": 5}),
        (GMP, {"dense_first": False}),
        (GMP, {"dense_last": True}),
        (DPF, {"distribution": "uniform"}),
        (DPF, {"dense_last": False}),
        (DPF, {"ga": GA}),
        (SWAT, {"activation_sparsity": 0.2}),
        (SWAT, {"update_every": 3}),
        (SWAT, {"distribution": "global"}),
        (SWAT, {"ga": GA}),
    ],
)
def test_every_field_changes_behaviour(base: type[Method], changes: dict[str, Any]) -> None:
    def outcome(method: Method) -> torch.Tensor:
        torch.manual_seed(0)
        model = three().double()
        run = sparsify(model, method, epochs=EPOCHS, steps_per_epoch=PER_EPOCH)
        optimizer = torch.optim.SGD(run.param_groups(), lr=0.1)
        run.bind(optimizer)
        generator = torch.Generator().manual_seed(3)
        for _ in range(STEPS):
            inputs = torch.randn(8, 10, generator=generator, dtype=torch.float64)
            one_step(model, optimizer, run, (inputs, torch.roll(inputs, 1, 1)))
        return torch.cat([each.flatten() for each in run.dense_state_dict().values()])

    assert not torch.equal(outcome(SMALL[base]), outcome(replace(SMALL[base], **changes)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DNW(sparsity=1.0), "sparsity = 1.0"),
        (lambda: DNW(sparsity=-0.1), "fraction of zeros"),
        (lambda: DNW(update_every=0), "update_every = 0"),
        (lambda: DNW(distribution="global"), "allowed: uniform, er, erk"),
        (lambda: TopKAST(sparsity=0.5, backward_sparsity=0.6), "backward_sparsity = 0.6"),
        (lambda: TopKAST(exploration=-1.0), "exploration = -1.0"),
        (lambda: TopKAST(power=0.5), "power = 0.5"),
        (lambda: GMP(begin=0.5, end=0.5), "begin = 0.5, end = 0.5"),
        (lambda: GMP(end=1.5), "fractions of the run"),
        (lambda: GMP(start_sparsity=0.9), "start_sparsity = 0.9"),
        (lambda: GMP(last_sparsity=1.0), "last_sparsity = 1.0"),
        (lambda: SWAT(activation_sparsity=1.0), "activation_sparsity = 1.0"),
    ],
)
def test_bad_fields_are_refused(make: Callable[[], Method], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_zero_epoch_beyond_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match="zero_epoch = 9"):
        sparsify(torch_net(), DNW(ga=GradientAnnealing(zero_epoch=9)), epochs=2, steps_per_epoch=1)


# ------------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize("name", TRANSCRIPTIONS)
def test_resume_is_exact(name: str) -> None:
    method, _ = TRANSCRIPTIONS[name]
    data = batches(STEPS)
    model, optimizer, run = prepared(method)
    for batch in data[:8]:
        one_step(model, optimizer, run, batch)
    saved = copy.deepcopy([each.state_dict() for each in (model, optimizer, run)])
    other, other_optimizer, other_run = prepared(method, torch_net(seed=5))
    for each, state in zip((other, other_optimizer, other_run), saved, strict=True):
        each.load_state_dict(state)
    for batch in data[8:]:
        one_step(model, optimizer, run, batch)
        one_step(other, other_optimizer, other_run, batch)
    assert all(torch.equal(each, other.state_dict()[key]) for key, each in model.state_dict().items())


@pytest.mark.parametrize("name", TRANSCRIPTIONS)
def test_finalize_gives_the_effective_weights_and_a_plain_module(name: str) -> None:
    model, run = trained(TRANSCRIPTIONS[name][0])
    inputs = batches(1)[0][0]
    expected, effective = model(inputs), [layer.effective() for layer in run.layers]
    plain = run.finalize()
    assert list(plain.state_dict()) == list(torch_net().state_dict())
    assert all("forward" not in vars(module) for module in plain.modules())
    torch.testing.assert_close(plain(inputs), expected, rtol=0, atol=1e-12)
    assert all(torch.equal(each, layer.weight()) for each, layer in zip(effective, run.layers, strict=True))


@pytest.mark.parametrize("name", TRANSCRIPTIONS)
def test_the_promised_sparsity_is_reached_exactly(name: str) -> None:
    method = TRANSCRIPTIONS[name][0]
    assert isinstance(method, Budgeted)
    _, run = trained(method)
    if method.distribution == "global":
        assert int(run.counts().sum()) == count_of(DENSE, method.sparsity)
    else:
        last = min(method.sparsity, getattr(method, "last_sparsity", None) or 1.0)
        assert run.counts().tolist() == [count_of(192, method.sparsity), count_of(64, last)]


def test_compiled_topkast_equals_eager() -> None:
    method = TopKASTPP(sparsity=0.7, backward_sparsity=0.4, soft=True, ga=GA, **ANY_ENDS)
    (model, optimizer, run), (twin, twin_optimizer, twin_run) = prepared(method), prepared(method)
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True)
    for batch in batches(6):
        one_step(model, optimizer, run, batch)
        one_step(compiled, twin_optimizer, twin_run, batch)
    for mine, theirs in zip(run.layers, twin_run.layers, strict=True):
        torch.testing.assert_close(mine.weight(), theirs.weight(), rtol=0, atol=1e-12)
