"""Magnitude pruning in rounds (Han 2015, lottery ticket) and dynamic network surgery, against NumPy transcriptions."""

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autosparse import sparsify
from autosparse.common.tensors import random_stream
from autosparse.methods.annealing import GradientAnnealing
from autosparse.methods.dns import DNS
from autosparse.methods.families.base import Method
from autosparse.methods.lottery import LotteryTicket
from autosparse.methods.prune_retrain import PruneRetrain
from autosparse.sparsifier import Sparsifier

from .numpy_net import LAYERS, Array, MomentumSGD, NumpyNet, batches, loss_of, torch_net

Batch = tuple[Tensor, Tensor]
ROUND = 10  # steps a round in most tests
DATA = batches(2 * ROUND)


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    return loss_of(model(batch[0]), batch[1])


def start(
    method: Method, model: nn.Module | None = None, epochs: int = 1, **options: Any
) -> tuple[nn.Module, Sparsifier, torch.optim.SGD]:
    model = torch_net() if model is None else model
    run = sparsify(model, method, epochs=epochs, steps_per_epoch=ROUND // epochs, **options)
    optimizer = torch.optim.SGD(run.param_groups(), lr=0.05, momentum=0.9)
    run.bind(optimizer)
    return model, run, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterable[Batch]) -> None:
    for batch in data:
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()


def numpy_train(net: NumpyNet, optimizer: MomentumSGD, masks: dict[str, Array], data: Iterable[Batch]) -> None:
    for x, y in data:
        gradients, bias_gradients = net.gradients(x.numpy(), y.numpy())
        optimizer.step(net, {name: gradients[name] * masks[name] for name in LAYERS}, bias_gradients)


def keep_largest(scores: Array, count: int) -> Array:
    mask = np.zeros(scores.size, dtype=bool)
    mask[np.argsort(-scores.reshape(-1), kind="stable")[:count]] = True
    return mask.reshape(scores.shape)


def magnitude_masks(net: NumpyNet, masks: dict[str, Array], density: float, scope: str) -> dict[str, Array]:
    scores = {name: np.where(masks[name], np.abs(net.weights[name]), -1.0) for name in LAYERS}
    if scope == "layer":
        return {name: keep_largest(scores[name], int(np.floor(density * scores[name].size + 0.5))) for name in LAYERS}
    flat = np.concatenate([scores[name].reshape(-1) for name in LAYERS])
    kept = keep_largest(flat, int(np.floor(density * flat.size + 0.5)))
    return {"0": kept[:192].reshape(16, 12), "2": kept[192:].reshape(4, 16)}


def all_on() -> dict[str, Array]:
    return {"0": np.ones((16, 12), dtype=bool), "2": np.ones((4, 16), dtype=bool)}


def assert_same(run: Sparsifier, net: NumpyNet, masks: dict[str, Array]) -> None:
    for layer in run.layers:
        np.testing.assert_array_equal(layer.active().numpy(), masks[layer.name])
        np.testing.assert_allclose(layer.weight().numpy(), net.weights[layer.name], atol=1e-6, rtol=0)


# ---------------------------------------------------------------------------------------------------- Han 2015


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_prune_retrain_matches_numpy(scope: str) -> None:
    model, run, optimizer = start(PruneRetrain(sparsity=0.84, rounds=2, scope=scope))
    net, theirs, masks = NumpyNet.like(torch_net()), MomentumSGD(0.05), all_on()
    for density in (1.0, 0.4, 0.16):  # 0.16^(1/2) and 0.16
        if density < 1:
            assert run.next_round(optimizer)
            masks = magnitude_masks(net, masks, density, scope)
            for name in LAYERS:
                net.weights[name] *= masks[name]
                theirs.buffers[f"{name}.weight"] *= masks[name]
        assert run.sparsity() == pytest.approx(1 - sum(mask.sum() for mask in masks.values()) / 256)
        train(model, optimizer, DATA[:ROUND])
        numpy_train(net, theirs, masks, DATA[:ROUND])
        assert_same(run, net, masks)
    assert not run.next_round(optimizer)
    assert not run.next_round(optimizer)
    assert_same(run, net, masks)


def test_quality_prunes_by_the_standard_deviation_of_the_survivors() -> None:
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(2, 1, bias=False))
    model[0].weight.data = torch.tensor([[1.0, -2.0, 3.0, -4.0]])
    model[1].weight.data = torch.tensor([[1.0, 1.0]])
    _, run, optimizer = start(PruneRetrain(quality=1.0, rounds=2), model)
    run.next_round(optimizer)  # mean -0.5, variance 7.5 - 0.25: the deviation is 2.69
    assert run.layers[0].weight().tolist() == [[0.0, 0.0, 3.0, -4.0]]
    assert run.layers[1].weight().tolist() == [[1.0, 1.0]]  # deviation 0: nothing lies below
    run.next_round(optimizer)  # of 3 and -4 it is 3.5
    assert run.layers[0].weight().tolist() == [[0.0, 0.0, 0.0, -4.0]]


def test_quality_never_empties_a_layer() -> None:
    _, run, optimizer = start(PruneRetrain(quality=100.0))
    run.next_round(optimizer)
    for layer in run.layers:
        assert int(layer.active().sum()) == 1
        assert layer.weight().abs().max() == layer.weight()[layer.active()].abs()


def test_a_pretrained_net_is_pruned_at_once_with_ties_by_index() -> None:
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(4, 1, bias=False))
    model[0].weight.data = torch.tensor([[1.0, -1.0, 1.0, 2.0]])
    model[1].weight.data = torch.tensor([[9.0, 8.0, 7.0, 6.0]])
    _, run, optimizer = start(PruneRetrain(sparsity=0.5), model)
    assert run.next_round(optimizer)
    assert run.layers[0].weight().tolist() == [[1.0, 0.0, 0.0, 2.0]]
    assert run.layers[1].weight().tolist() == [[9.0, 8.0, 0.0, 0.0]]


# ---------------------------------------------------------------------------------------------------- lottery ticket


@pytest.mark.parametrize("rewind_epoch", [0, 1])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_lottery_matches_numpy(rewind_epoch: int, scope: str) -> None:
    method = LotteryTicket(sparsity=0.84, rounds=2, scope=scope, rewind_epoch=rewind_epoch)
    model, run, optimizer = start(method, epochs=2)
    net, theirs, masks = NumpyNet.like(torch_net()), MomentumSGD(0.05), all_on()
    saved = copy.deepcopy((net, theirs))
    for number, density in enumerate((1.0, 0.4, 0.16)):
        if number:
            assert run.next_round(optimizer)
            assert (run.epoch, run.step) == (0, 0)
            masks = magnitude_masks(net, masks, density, scope)
            net, theirs = copy.deepcopy(saved)
            for name in LAYERS:
                net.weights[name] *= masks[name]
                if theirs.buffers:
                    theirs.buffers[f"{name}.weight"] *= masks[name]
        for epoch in range(2):
            data = DATA[epoch * ROUND // 2 : (epoch + 1) * ROUND // 2]
            train(model, optimizer, data)
            run.end_epoch()
            numpy_train(net, theirs, masks, data)
            if number == 0 and epoch + 1 == rewind_epoch:
                saved = copy.deepcopy((net, theirs))
        assert_same(run, net, masks)
        np.testing.assert_allclose(model.state_dict()["0.bias"].numpy(), net.biases["0"], atol=1e-6)
    assert not run.next_round(optimizer)


def norm_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).double()


def test_lottery_rewinds_weights_norms_and_optimizer_to_the_first_step() -> None:
    model = norm_net()
    run = sparsify(model, LotteryTicket(sparsity=0.5, rounds=1), epochs=1, steps_per_epoch=5)
    optimizer = torch.optim.AdamW(run.param_groups(weight_decay=0.01), lr=0.1)
    run.bind(optimizer)
    model[0].weight = model[0].weight * 2  # type: ignore[index,operator]  # weights set after sparsify count as the start
    before = {name: value.clone() for name, value in model.state_dict().items()}
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    train(model, optimizer, DATA[:5])
    schedule.step()
    trained = {layer.name: layer.weight().clone() for layer in run.layers}
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert run.next_round(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state
    kept = torch.cat([layer.active().reshape(-1) for layer in run.layers])
    magnitudes = torch.cat([trained[layer.name].abs().reshape(-1) for layer in run.layers])
    assert int(kept.sum()) == 128
    assert magnitudes[kept].min() >= magnitudes[~kept].max()
    for name, value in model.state_dict().items():
        if name.endswith("original"):
            assert torch.equal(value, before[name] * model.state_dict()[name.replace("original", "0.mask")])
        elif not name.endswith("mask"):
            assert torch.equal(value, before[name]), name


def test_lottery_rewinds_adam_moments_to_an_epoch_and_clears_those_of_pruned_weights() -> None:
    model = norm_net()
    run = sparsify(model, LotteryTicket(sparsity=0.5, rounds=1, rewind_epoch=1), epochs=2, steps_per_epoch=5)
    optimizer = torch.optim.Adam(run.param_groups(), lr=0.01)
    run.bind(optimizer)
    train(model, optimizer, DATA[:5])
    run.end_epoch()
    tensors, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()["state"])
    train(model, optimizer, DATA[5:10])
    run.end_epoch()
    run.next_round(optimizer)
    assert torch.equal(model.state_dict()["1.running_mean"], tensors["1.running_mean"])
    now = optimizer.state_dict()["state"]
    pruned_shapes = {layer.shape: layer.active() for layer in run.layers}
    for index, values in state.items():
        assert now[index]["step"] == 5
        for key in ("exp_avg", "exp_avg_sq"):
            mask = pruned_shapes.get(values[key].shape, torch.tensor(True))
            assert torch.equal(now[index][key], values[key] * mask)
    assert any(not mask.all() for mask in pruned_shapes.values())


@pytest.mark.parametrize("method", [PruneRetrain(sparsity=0.75, rounds=2), LotteryTicket(sparsity=0.75, rounds=2)])
@pytest.mark.parametrize("at", ["inside a round", "between rounds"])
def test_rounds_resume_exactly(method: Method, at: str, tmp_path: Any) -> None:
    model, run, optimizer = start(method)
    train(model, optimizer, DATA[:ROUND])
    run.next_round(optimizer)
    if at == "inside a round":
        train(model, optimizer, DATA[:3])
    torch.save({"model": model.state_dict(), "opt": optimizer.state_dict(), "run": run.state_dict()}, tmp_path / "c.pt")
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    other_model, other, other_optimizer = start(method, torch_net(seed=7))
    other_model.load_state_dict(state["model"])
    other_optimizer.load_state_dict(state["opt"])
    other.load_state_dict(state["run"])
    for net, sparsifier, opt in ((model, run, optimizer), (other_model, other, other_optimizer)):
        train(net, opt, DATA[3:ROUND])
        assert sparsifier.next_round(opt)
        train(net, opt, DATA[ROUND:])
        assert not sparsifier.next_round(opt)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other_model.state_dict()[name]), name


def test_momentum_never_revives_a_weight_pruned_between_rounds() -> None:
    model, run, optimizer = start(PruneRetrain(sparsity=0.8))
    train(model, optimizer, DATA[:ROUND])
    assert run.next_round(optimizer)
    for _ in range(2):
        for layer in run.layers:
            pruned = ~layer.active()
            assert torch.all(layer.weight()[pruned] == 0)
            assert torch.all(run.optimizer_state(layer)["momentum_buffer"][pruned] == 0)
            assert torch.any(run.optimizer_state(layer)["momentum_buffer"][~pruned] != 0)
        train(model, optimizer, DATA[:3])


def test_the_ledger_sums_over_rounds() -> None:
    model, run, optimizer = start(
        LotteryTicket(sparsity=0.75, rounds=2), example_input=torch.zeros(1, 12).double(), baseline_epochs=1
    )
    for number in range(3):
        train(model, optimizer, DATA[:ROUND])
        run.end_epoch()
        assert run.next_round(optimizer) == (number < 2)
    assert run.cost.train_fraction == pytest.approx(1 + 0.5 + 0.25)
    assert run.cost.test_fraction == pytest.approx(0.25)
    assert "round 2 of 2" in run.report().notes


def test_next_round_without_training_is_refused() -> None:
    _, run, optimizer = start(LotteryTicket())
    with pytest.raises(RuntimeError, match="nothing to rewind to"):
        run.next_round(optimizer)
    model, run, optimizer = start(LotteryTicket(rewind_epoch=1), epochs=2)
    train(model, optimizer, DATA[:2])
    with pytest.raises(RuntimeError, match="through epoch 1"):
        run.next_round(optimizer)
    model, run, optimizer = start(LotteryTicket())
    train(model, optimizer, DATA[:2])
    assert run.next_round(optimizer)
    with pytest.raises(RuntimeError, match="has not been trained"):
        run.next_round(optimizer)
    assert run.memory["round"] == 1


# ---------------------------------------------------------------------------------------------------- DNS


@pytest.mark.parametrize("iter_stop", [None, 12])
def test_dns_matches_numpy(iter_stop: int | None) -> None:
    method = DNS(c_rate=0.3, gamma=0.2, power=0.8, margin=0.05, iter_stop=iter_stop)
    model, run, optimizer = start(method, seed=11)
    net, theirs, masks = NumpyNet.like(torch_net()), MomentumSGD(0.05), all_on()
    magnitudes = {name: np.abs(net.weights[name]) for name in LAYERS}
    level = {name: max(magnitudes[name].mean() + 0.3 * magnitudes[name].std(), 0) for name in LAYERS}
    generator, cut, spliced = random_stream(11, "masks"), 0, 0
    for step, (x, y) in enumerate(DATA):
        draws = torch.rand(2, generator=generator).tolist() if step else [0.0, 0.0]
        for name, draw in zip(LAYERS, draws, strict=True):
            if (1 + 0.2 * step) ** -0.8 > draw and (iter_stop is None or step < iter_stop):
                size = np.abs(net.weights[name])
                off, on = masks[name] & (size <= 0.95 * level[name]), ~masks[name] & (size > 1.05 * level[name])
                masks[name] = (masks[name] & ~off) | on
                cut, spliced = cut + off.sum(), spliced + on.sum()
        for layer in run.layers:
            np.testing.assert_array_equal(layer.active().numpy(), masks[layer.name])
        seen = {name: net.weights[name] * masks[name] for name in LAYERS}
        gradients, bias_gradients = net.gradients(x.numpy(), y.numpy(), seen)
        theirs.step(net, gradients, bias_gradients)
        train(model, optimizer, [(x, y)])
        for layer in run.layers:
            np.testing.assert_allclose(layer.weight().numpy(), net.weights[layer.name], atol=1e-6, rtol=0)
    assert cut > 0
    assert spliced > 0


def test_dns_hysteresis_by_hand() -> None:
    model = nn.Sequential(nn.Linear(5, 1, bias=False)).double()
    model[0].weight.data = torch.tensor([[0.0, 1.0, -2.0, 3.0, -4.0]]).double()
    _, run, optimizer = start(DNS(c_rate=0.0, gamma=0.0), model)
    layer = run.layers[0]
    # the mean of the four non-zero magnitudes is 2.5: cut at 2.25, splice above 2.75
    assert run.memory["threshold"] == {"0": 2.5}
    assert layer.active().tolist() == [[False, False, False, True, True]]
    assert layer.weight().tolist() == [[0.0, 1.0, -2.0, 3.0, -4.0]]  # stored weights are left alone
    with torch.no_grad():
        layer.stored.copy_(torch.tensor([[0.0, 2.7, -2.8, 2.3, -2.2]]))
    optimizer.zero_grad()
    (0 * model(torch.zeros(1, 5).double()).sum()).backward()
    optimizer.step()
    assert layer.active().tolist() == [[False, False, True, True, False]]


def test_dns_gives_pruned_weights_the_whole_gradient_or_alpha_of_it() -> None:
    found = []
    for ga in (None, GradientAnnealing(alpha=0.5, schedule="constant")):
        model, run, _ = start(DNS(ga=ga))
        x, y = DATA[0]
        loss_fn(model, (x, y)).backward()
        pruned = ~run.layers[0].active()
        found.append(run.gradient(run.layers[0])[pruned])
        net = NumpyNet.like(torch_net())
        seen = {layer.name: layer.effective().numpy() for layer in run.layers}
        dense = net.gradients(x.numpy(), y.numpy(), seen)[0]["0"]
        np.testing.assert_allclose(found[-1].numpy(), run.alpha * dense[pruned.numpy()])
    assert torch.allclose(found[1], found[0] / 2)
    assert torch.any(found[0] != 0)


def test_dns_ledger() -> None:
    example = torch.zeros(1, 12).double()
    for ga, dense_weight_gradient in ((None, True), (GradientAnnealing(zero_epoch=0), False)):
        model, run, optimizer = start(DNS(ga=ga, gamma=1e9, power=1e3), example_input=example)  # masks stay as they start
        train(model, optimizer, DATA[:2])
        density = 1 - run.sparsity()
        expected = (2 * density + 1) / 3 if dense_weight_gradient else density
        assert run.cost.train_fraction == pytest.approx(expected)
    assert 0 < density < 1


# ---------------------------------------------------------------------------------------------------- fields


def outcome(method: Method) -> tuple[float, ...]:
    model, run, optimizer = start(method, epochs=2)
    more = True
    while more:
        for data in (DATA[: ROUND // 2], DATA[ROUND // 2 : ROUND]):
            train(model, optimizer, data)
            run.end_epoch()
        more = not isinstance(method, DNS) and run.next_round(optimizer)
    return tuple(torch.cat([value.reshape(-1) for value in run.dense_state_dict().values()]).tolist())


def test_every_field_changes_the_outcome() -> None:
    ends: list[dict[str, Any]] = [{"dense_first": True}, {"dense_last": True}]
    variants: list[Method] = [
        *(PruneRetrain(**f) for f in ({}, {"sparsity": 0.5}, {"quality": 1.0}, {"rounds": 2}, {"scope": "global"}, *ends)),
        *(LotteryTicket(**{"rounds": 2, **f}) for f in ({}, {"sparsity": 0.5}, {"rounds": 3}, {"scope": "layer"}, *ends)),
        LotteryTicket(rounds=2, rewind_epoch=1),
        *(DNS(**f) for f in ({}, {"c_rate": 0.5}, {"margin": 0.01}, {"gamma": 1.0}, {"iter_stop": 1}, *ends)),
        DNS(gamma=1.0, power=0.3),
        DNS(ga=GradientAnnealing()),
    ]
    seen: dict[tuple[float, ...], Method] = {}
    for variant in variants:
        found = outcome(variant)
        assert found not in seen, f"{variant} does the same as {seen[found]}"
        seen[found] = variant


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (PruneRetrain, {"sparsity": 1.0}, "sparsity = 1.0"),
        (PruneRetrain, {"sparsity": 0.5, "quality": 1.0}, "not both"),
        (PruneRetrain, {"quality": 0.0}, "quality = 0.0"),
        (PruneRetrain, {"quality": 1.0, "scope": "global"}, "scope='layer'"),
        (PruneRetrain, {"rounds": 0}, "rounds = 0"),
        (PruneRetrain, {"scope": "net"}, "scope = 'net'"),
        (LotteryTicket, {"sparsity": -0.1}, "sparsity = -0.1"),
        (LotteryTicket, {"rounds": 0}, "rounds = 0"),
        (LotteryTicket, {"rewind_epoch": -1}, "rewind_epoch = -1"),
        (DNS, {"margin": 1.0}, "margin = 1.0"),
        (DNS, {"gamma": -1.0}, "gamma = -1.0"),
        (DNS, {"power": -1.0}, "power = -1.0"),
        (DNS, {"iter_stop": 0}, "iter_stop = 0"),
    ],
)
def test_bad_fields_are_refused(cls: type[Method], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**fields)


def test_settings_beyond_the_run_are_refused() -> None:
    with pytest.raises(ValueError, match="rewind_epoch = 1 lies beyond"):
        start(LotteryTicket(rewind_epoch=1))
    with pytest.raises(ValueError, match="zero_epoch = 2 lies beyond"):
        start(DNS(ga=GradientAnnealing(zero_epoch=2)))
