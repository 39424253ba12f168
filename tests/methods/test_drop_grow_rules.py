"""Hand-computed rules of drop-and-grow: exact counts, what RigL keeps, how SNFS and DSR move weights, MEST's stages."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from autosparse import Sparsifier, sparsify
from autosparse.common.tensors import random_stream
from autosparse.methods.dsr import DSR
from autosparse.methods.families.base import Method
from autosparse.methods.families.drop_grow import apportion, drop, grow, highest, replace
from autosparse.methods.families.fixed_mask import mask_of, set_mask
from autosparse.methods.mest import MEST
from autosparse.methods.rigl import RigL
from autosparse.methods.set import SET, signed_ranks
from autosparse.methods.snfs import SNFS, momentum

from .numpy_net import batches, loss_of, torch_net


def booleans(pattern: str) -> Tensor:
    return torch.tensor([mark == "x" for mark in pattern])


def rows(method: Method, *patterns: str, optimizer: str = "SGD", steps: int = 4) -> tuple[Sparsifier, torch.optim.Optimizer]:
    """A model of one-row Linears whose masks and weights are set by hand: active weights are 1, 2, 3, ..."""
    model = nn.Sequential(*(nn.Linear(len(pattern), 1, bias=False) for pattern in patterns)).double()
    sp = sparsify(model, method, epochs=1, steps_per_epoch=steps)
    kinds = {"SGD": {"lr": 0.0, "momentum": 0.5}, "Adam": {"lr": 0.0}}
    bound: torch.optim.Optimizer = getattr(torch.optim, optimizer)(sp.param_groups(), **kinds[optimizer])
    sp.bind(bound)
    for layer, pattern in zip(sp.layers, patterns, strict=True):
        set_weight(layer.stored, list(range(1, len(pattern) + 1)))
        mask_of(layer).fill_(True)
        set_mask(sp, layer, booleans(pattern)[None])
    return sp, bound


def set_weight(stored: Tensor, values: list[float]) -> None:
    stored.detach().copy_(torch.tensor([values]))


def step(sp: Sparsifier, optimizer: torch.optim.Optimizer, *gradients: list[float]) -> None:
    for layer, gradient in zip(sp.layers, gradients, strict=True):
        layer.stored.grad = torch.tensor([gradient], dtype=torch.float64)
    optimizer.step()


def pattern(sp: Sparsifier, layer: int = 0) -> str:
    return "".join(".x"[active] for active in mask_of(sp.layers[layer]).reshape(-1).tolist())


# ---------------------------------------------------------------------------------------------------- tensor functions


def test_ties_are_cut_by_index_and_counts_are_exact() -> None:
    ones = torch.ones(6)
    assert torch.equal(drop(booleans("xx.xx."), ones, 2), booleans("xx...."))
    assert torch.equal(grow(booleans("x....."), ones, 2), booleans("xxx..."))
    assert torch.equal(grow(booleans("x....."), ones, 2, booleans("..xxxx")), booleans("x.xx.."))
    assert torch.equal(highest(torch.tensor([math.nan, 1.0, math.inf, 0.0]), booleans("xxxx"), 3), booleans(".xxx"))


def test_a_dropped_weight_may_come_straight_back() -> None:
    sizes, growth = torch.tensor([1.0, 2, 3, 0, 0]), torch.tensor([9.0, 0, 0, 5, 1])
    assert torch.equal(replace(booleans("xxx.."), sizes, growth, 1), booleans("xxx.."))
    assert torch.equal(replace(booleans("xxx.."), sizes, growth, 2), booleans("x.xx."))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40), st.floats(0, 1))
def test_replacing_keeps_the_count(weights: list[tuple[bool, int, int]], fraction: float) -> None:
    active, sizes, growth = (torch.tensor(column) for column in zip(*weights, strict=True))
    count = int(fraction * int(active.sum()))
    kept = drop(active, sizes.double(), count)
    after = replace(active, sizes.double(), growth.double(), count)
    assert int(kept.sum()) == int(active.sum()) - count
    assert int(after.sum()) == int(active.sum())
    assert not bool((kept & ~active).any())
    assert not bool((kept & ~after).any())


def test_apportioning_by_hand() -> None:
    assert apportion([3, 1], 4, [9, 9]) == [3, 1]
    assert apportion([3, 1], 4, [2, 9]) == [2, 2]
    assert apportion([1, 1, 1], 4, [9, 9, 9]) == [2, 1, 1]
    assert apportion([0.5, 0.5, 0], 5, [1, 1, 9]) == [1, 1, 3]
    with pytest.raises(ValueError, match="5 weights are to grow, but only 4 places are free"):
        apportion([1, 1], 5, [2, 2])


@given(st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 50)), min_size=1, max_size=8), st.floats(0, 1))
def test_apportioning_sums_to_the_total_within_capacity(places: list[tuple[float, int]], part: float) -> None:
    shares, capacity = (list(column) for column in zip(*places, strict=True))
    total = int(part * sum(capacity))
    parts = apportion(shares, total, capacity)
    assert sum(parts) == total
    assert all(0 <= given_ <= room for given_, room in zip(parts, capacity, strict=True))


# ---------------------------------------------------------------------------------------------------- RigL


def rigl(**fields: float) -> RigL:
    return RigL(sparsity=0.5, dense_first=False, update_every=1, update_end=1.0, drop_fraction=0.5, **fields)  # type: ignore[arg-type]


def test_rigl_regrows_a_dropped_weight_with_its_value_and_momentum() -> None:
    # step 1 of 2: f = .5/2 (1 + cos(pi/2)) = .25, so one of four goes: the 1; its gradient is the largest, so it returns
    sp, optimizer = rows(rigl(), "xxxx....", steps=2)
    step(sp, optimizer, [1, 1, 1, 1, 0, 0, 0, 0])
    step(sp, optimizer, [9, 8, 8, 8, 5, 0, 0, 0])
    assert pattern(sp) == "xxxx...."
    assert sp.layers[0].weight().tolist() == [[1, 2, 3, 4, 0, 0, 0, 0]]
    assert sp.optimizer_state(sp.layers[0])["momentum_buffer"].tolist() == [[1, 1, 1, 1, 0, 0, 0, 0]]


def test_rigl_grows_at_zero_with_cleared_state() -> None:
    sp, optimizer = rows(rigl(), "xxxx....", steps=2)
    step(sp, optimizer, [1, 1, 1, 1, 0, 0, 0, 0])
    sp.optimizer_state(sp.layers[0])["momentum_buffer"].fill_(7)
    step(sp, optimizer, [4, 8, 8, 8, 3, -5, 0, 0])
    assert pattern(sp) == ".xxx.x.."
    assert sp.layers[0].weight().tolist() == [[0, 2, 3, 4, 0, 0, 0, 0]]
    assert sp.optimizer_state(sp.layers[0])["momentum_buffer"].tolist() == [[0, 7, 7, 7, 0, 0, 0, 0]]


def test_rigl_update_takes_the_place_of_the_step() -> None:
    model = torch_net()
    sp = sparsify(model, RigL(sparsity=0.5, update_every=3, update_end=1.0), epochs=1, steps_per_epoch=9)
    optimizer = torch.optim.AdamW(sp.param_groups(weight_decay=0.1), lr=0.1)
    sp.bind(optimizer)
    bias, weight = model[0].bias, sp.layers[0].stored
    for t, (x, y) in enumerate(batches(9)):
        before = bias.detach().clone(), sp.layers[0].weight().clone(), mask_of(sp.layers[0]).clone()
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        assert weight.grad is not None
        inactive_gradient = weight.grad[~before[2]]
        assert bool(inactive_gradient.any()) == (t in (3, 6))
        optimizer.step()
        assert sp.step == t + 1
        both = before[2] & mask_of(sp.layers[0])
        if t in (3, 6):
            assert torch.equal(bias, before[0])
            assert torch.equal(sp.layers[0].weight()[both], before[1][both])
            assert not torch.equal(mask_of(sp.layers[0]), before[2])
        else:
            assert not torch.equal(bias, before[0])
            assert torch.equal(mask_of(sp.layers[0]), before[2])
    assert int(optimizer.state[weight]["step"]) == 7


# ---------------------------------------------------------------------------------------------------- SET


def test_set_drops_both_signs_alike() -> None:
    # 4 positive and 2 negative weights: half of each side goes, though the negative ones are larger
    weight = torch.tensor([1.0, 2, 3, 4, -5, -6, 0])
    scores = signed_ranks(weight, booleans("xxxxxx."), 0.5)
    assert torch.equal(drop(booleans("xxxxxx."), scores, 3), booleans("..xx.x."))


def test_set_rewires_after_the_step_and_never_at_the_very_end() -> None:
    sp, optimizer = rows(SET(sparsity=0.5, update_every=2, drop_fraction=0.5), "xxxx....", steps=4)
    step(sp, optimizer, [1.0] * 8)
    assert pattern(sp) == "xxxx...."
    step(sp, optimizer, [1.0] * 8)
    middle = pattern(sp)
    assert middle != "xxxx...."
    assert middle[2:4] == "xx"  # the 1 and the 2 went
    assert middle.count("x") == 4
    for _ in range(2):
        step(sp, optimizer, [1.0] * 8)
    assert pattern(sp) == middle


# ---------------------------------------------------------------------------------------------------- SNFS


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_snfs_moves_weights_to_the_layer_with_more_momentum(optimizer: str) -> None:
    method = SNFS(sparsity=0.5, update_every=2, drop_fraction=0.5, final_drop_fraction=0.5)
    sp, bound = rows(method, "xxxx....", "xxxx....", optimizer=optimizer)
    # mean |momentum| of active weights is 3 : 1; both give up 2 of 4, so 4 come back as 3 and 1
    step(sp, bound, [0.0] * 8, [0.0] * 8)
    for layer, scale in zip(sp.layers, (3.0, 1.0), strict=True):
        state = sp.optimizer_state(layer)
        values = torch.tensor([[1, -1, 1, -1, 0.1, 0.9, 0.2, -0.3]], dtype=torch.float64) * scale
        if optimizer == "SGD":
            state["momentum_buffer"].copy_(values)
        else:
            state["exp_avg"].copy_(values * 5)
            state["exp_avg_sq"].fill_(25.0)
    sp.step = 2
    method.renew(sp)
    # the first layer keeps the 3 and the 4, takes back the 1 and the 2 (momentum 3) and grows the .9
    assert pattern(sp, 0) == "xxxx.x.."
    assert pattern(sp, 1) == "x.xx...."
    assert sp.layers[0].weight().tolist() == [[1, 2, 3, 4, 0, 0, 0, 0]]
    left = momentum(sp, sp.layers[0])
    assert left[0, 5] == 0
    assert left[0, 7].item() == pytest.approx(-0.9)


def test_snfs_keeps_momentum_dense_and_pruned_weights_at_zero() -> None:
    sp, optimizer = rows(SNFS(sparsity=0.5), "xx..", steps=4)
    optimizer.param_groups[0]["lr"] = 1.0
    for _ in range(2):
        step(sp, optimizer, [1, 1, 2, 2])
    assert momentum(sp, sp.layers[0]).tolist() == [[1.5, 1.5, 3, 3]]
    assert sp.layers[0].weight().tolist() == [[-1.5, -0.5, 0, 0]]


def test_snfs_spares_a_nearly_dense_layer_and_the_last_weight() -> None:
    assert SNFS.removed(90, 100, 1.0, 0.5) == 9  # sparsity .1 < .2 and a full share: rate min(.1, .5)
    assert SNFS.removed(90, 100, 0.9, 0.5) == 45
    assert SNFS.removed(70, 100, 2.0, 0.5) == 35
    assert SNFS.removed(7, 100, 1.0, 0.3) == 3  # rounded up
    assert SNFS.removed(1, 100, 1.0, 0.5) == 0


def test_snfs_needs_momentum() -> None:
    model = torch_net()
    sp = sparsify(model, SNFS(sparsity=0.5), epochs=1, steps_per_epoch=4)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.1)
    sp.bind(optimizer)
    x, y = batches(1)[0]
    loss_of(model(x), y).backward()
    with pytest.raises(ValueError, match="there is none for 0: use SGD"):
        optimizer.step()


# ---------------------------------------------------------------------------------------------------- DSR


def test_dsr_prunes_by_one_threshold_and_regrows_elsewhere() -> None:
    method = DSR(sparsity=0.5, threshold=2.5, prune_fraction=0.25, update_every=2)
    sp, optimizer = rows(method, "xxxx....", "xxxxxx......", steps=16)
    step(sp, optimizer, [1.0] * 8, [1.0] * 12)
    step(sp, optimizer, [1.0] * 8, [1.0] * 12)
    # 1 and 2 go in both layers; 2 + 4 remain, so the 4 gone come back as 4 * 2/6 -> 1 and 4 * 4/6 -> 3
    first, second = pattern(sp, 0), pattern(sp, 1)
    assert first[:4] == "..xx"
    assert second[:6] == "..xxxx"
    assert (first.count("x"), second.count("x")) == (3, 7)
    assert sp.layers[1].weight().tolist() == [[0, 0, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0]]
    # 4 of 10 are more than 1.1 * 2.5
    assert sp.memory["threshold"] == 1.25
    assert method.notes(sp) == ["pruning threshold 1.25"]


def test_dsr_keeps_the_largest_weight_of_a_layer_and_fills_up_when_there_is_no_other_place() -> None:
    sp, optimizer = rows(DSR(sparsity=0.5, threshold=100.0, update_every=1), "xxx.")
    step(sp, optimizer, [1.0] * 4)
    # two go and only one place was free before: just-pruned places are used too, with the value 0
    assert pattern(sp).count("x") == 3
    assert pattern(sp)[2] == "x"
    assert sp.layers[0].weight().tolist() == [[0, 0, 3, 0]]


def test_dsr_threshold_doubles_halves_or_stays() -> None:
    method = DSR(prune_fraction=0.1, tolerance=0.1)
    assert [method.factor(pruned, 1000) for pruned in (111, 110, 90, 89)] == [0.5, 1.0, 1.0, 2.0]


def test_dsr_period_doubles() -> None:
    sp, _ = rows(DSR(sparsity=0.5, update_every=1), "xx..", steps=32)
    found = []
    for sp.step in range(33):
        found += [sp.step] * sp.method.due(sp)  # type: ignore[attr-defined]
    assert found == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24]


# ---------------------------------------------------------------------------------------------------- MEST


def test_mest_importance_and_value_of_what_grows() -> None:
    # prune to 75 %, grow back to 50 %: of |w| + 2|G| = 9, 2, 3, 4 the 2 and the 3 go
    method = MEST(sparsity=0.5, mutation=(0.25,), stages=(1.0,), update_epochs=1, gradient_weight=2.0, dense_first=False)
    model = nn.Sequential(nn.Linear(8, 1, bias=False)).double()
    sp = sparsify(model, method, epochs=4, steps_per_epoch=1)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.0)
    sp.bind(optimizer)
    set_weight(sp.layers[0].stored, [1, 2, 3, 4, 0, 0, 0, 0])
    mask_of(sp.layers[0]).copy_(booleans("xxxx....")[None])
    step(sp, optimizer, [4, 0, 0, 0, 0, 0, 0, 0])
    assert pattern(sp)[0] == pattern(sp)[3] == "x"
    assert pattern(sp).count("x") == 4
    assert sp.layers[0].weight().tolist() == [[1, 0, 0, 4, 0, 0, 0, 0]]


def test_mest_ranks_by_magnitude_plus_gradient() -> None:
    # one of |w| + |G| = 1 + 4, 2 + 0, 3 + 0, 4 + 0 goes: 2, not 1
    method = MEST(sparsity=0.5, mutation=(0.125,), stages=(1.0,), update_epochs=1, dense_first=False)
    sp = sparsify(nn.Sequential(nn.Linear(8, 1, bias=False)).double(), method, epochs=4, steps_per_epoch=1)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.0)
    sp.bind(optimizer)
    set_weight(sp.layers[0].stored, [1, 2, 3, 4, 0, 0, 0, 0])
    mask_of(sp.layers[0]).copy_(booleans("xxxx....")[None])
    step(sp, optimizer, [4, 0, 0, 0, 0, 0, 0, 0])
    assert sp.layers[0].weight().tolist() == [[1, 0, 3, 4, 0, 0, 0, 0]]


def test_mest_mutates_before_the_first_step() -> None:
    # 4 of 8 weights are active at random; the smallest two of them go, two grow at random with a value of 0
    method = MEST(sparsity=0.5, mutation=(0.25,), stages=(1.0,), update_epochs=1, dense_first=False)
    model = nn.Sequential(nn.Linear(8, 1, bias=False)).double()
    set_weight(model[0].weight, [1, 2, 3, 4, 5, 6, 7, 8])
    generator = random_stream(0, "masks")
    starting, growing = (torch.rand(1, 8, generator=generator)[0] for _ in range(2))
    drawn = starting.topk(4).indices.tolist()
    largest = sorted(drawn)[2:]
    others = [place for place in range(8) if place not in largest]
    grown = sorted(others, key=lambda place: -float(growing[place]))[:2]
    sp = sparsify(model, method, epochs=4, steps_per_epoch=1)
    assert mask_of(sp.layers[0])[0].nonzero().flatten().tolist() == sorted([*largest, *grown])
    assert sp.layers[0].weight().tolist() == [[place + 1 if place in largest else 0 for place in range(8)]]


def test_mest_never_sees_the_gradient_of_an_inactive_weight() -> None:
    model = torch_net()
    method = MEST(sparsity=0.8, update_epochs=1, gradient_weight=1.0)
    sp = sparsify(model, method, epochs=5, steps_per_epoch=2)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.1, momentum=0.9)
    sp.bind(optimizer)
    for x, y in batches(10):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        for layer in sp.layers:
            assert not sp.gradient(layer)[~mask_of(layer)].any()
        optimizer.step()


def test_mest_soft_is_denser_until_its_last_stage() -> None:
    model = torch_net()
    method = MEST(sparsity=0.8, soft=True, mutation=(0.2, 0.1), stages=(0.5, 0.7), update_epochs=4, dense_first=False)
    sp = sparsify(model, method, epochs=5, steps_per_epoch=2)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.1)
    sp.bind(optimizer)
    counts = [sum(int(mask_of(layer).sum()) for layer in sp.layers)]
    for x, y in batches(10):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
        counts.append(sum(int(mask_of(layer).sum()) for layer in sp.layers))
    # 192 and 64 weights: 40 % are 77 + 26, 30 % are 58 + 19, 20 % are 38 + 13
    assert counts == [103] * 5 + [77] * 2 + [51] * 4
