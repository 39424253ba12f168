"""Hand-computed behaviour of DST, OptG, LTP, CS and SCL: gradients, resets, ties, tickets, costs, resume, bad input."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autosparse import SparsityWarning, sparsify
from autosparse.methods import Method
from autosparse.methods.cs import CS, Logits
from autosparse.methods.dst import DST, FilterThreshold, step_derivative
from autosparse.methods.families.learned_mask import SoftMask
from autosparse.methods.ltp import LTP, SoftPruned
from autosparse.methods.optg import OptG, Scored
from autosparse.methods.scl import SCL, Connected
from autosparse.sparsifier import Sparsifier

from .numpy_net import batches, loss_of, torch_net

METHODS: list[Method] = [
    DST(penalty_weight=0.05),
    OptG(sparsity=0.7, beta=5.0),
    LTP(penalty_weight=0.01, temperature=0.05),
    CS(s_init=0.003, final_beta=50.0),
    SCL(penalty_weight=0.2, m_init=0.05),
]
NAMES = [method.about.name for method in METHODS]
every = pytest.mark.parametrize("method", METHODS, ids=NAMES)


def attach(method: Method, epochs: int = 4, **options: Any) -> tuple[nn.Sequential, Sparsifier, torch.optim.SGD]:
    model = torch_net()
    sp = sparsify(model, method, epochs=epochs, steps_per_epoch=3, guard=None, **options)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    sp.bind(optimizer)
    return model, sp, optimizer


def train(model: nn.Module, sp: Sparsifier, optimizer: torch.optim.Optimizer, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        loss = loss_of(model(x), y) + sp.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if sp.step % 3 == 0:
            sp.end_epoch()


def value(loss: Tensor | float) -> float:
    return loss.item() if isinstance(loss, Tensor) else loss


def single(method: Method, weight: list[list[float]]) -> tuple[nn.Linear, Sparsifier]:
    """One Linear with the given weight, sparsified."""
    layer = nn.Linear(len(weight[0]), len(weight), bias=False).double()
    layer.weight.data = torch.tensor(weight, dtype=torch.float64)
    return layer, sparsify(nn.Sequential(layer), method, epochs=4, steps_per_epoch=3, guard=None)


# ------------------------------------------------------------------------------------------------------------ DST


def test_step_derivative() -> None:
    x = torch.tensor([0.0, 0.1, -0.4, 0.41, -1.0, 1.01], dtype=torch.float64)
    assert step_derivative(x).tolist() == pytest.approx([2.0, 1.6, 0.4, 0.4, 0.4, 0.0])


def test_dst_gradients_by_hand() -> None:
    layer, sp = single(DST(), [[0.5, -0.1, 1.5], [0.3, 0.2, -0.2]])
    part = sp.layers[0].parametrization
    assert isinstance(part, FilterThreshold)
    part.threshold.data.copy_(torch.tensor([[0.2], [0.2]]))
    seen = layer.weight
    assert seen.tolist() == [[0.5, 0.0, 1.5], [0.3, 0.0, 0.0]]  # |w| = t is pruned
    seen.backward(torch.tensor([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]], dtype=torch.float64))
    # H': |.3| -> .8, |-.1| -> 1.6, 1.3 -> 0; |.1| -> 1.6, 0 -> 2, 0 -> 2
    grad = sp.layers[0].stored.grad
    assert grad is not None
    assert grad.flatten().tolist() == pytest.approx([1 + 0.4, -0.32 * -1, 3.0, 1 + 0.48, 0.4, -0.4 * -1])
    assert part.threshold.grad is not None
    assert part.threshold.grad.flatten().tolist() == pytest.approx([-(0.4 - 0.32), -(0.48 + 0.4 - 0.4)])


def test_dst_penalty_is_a_sum_over_filters() -> None:
    _, sp, _ = attach(DST(penalty_weight=0.5))
    assert value(sp.penalty()) == pytest.approx(0.5 * (16 + 4))
    for threshold in sp.thresholds():
        threshold.data.fill_(1.0)
    assert value(sp.penalty()) == pytest.approx(0.5 * 20 / math.e)


@pytest.mark.parametrize(("reset", "dies"), [(0.25, True), (0.2, False)])
def test_dst_resets_a_whole_layer_at_the_kept_share(reset: float, dies: bool) -> None:
    _, sp = single(DST(reset=reset), [[0.1, 0.2], [0.3, 0.4]])
    part = sp.layers[0].parametrization
    assert isinstance(part, FilterThreshold)
    part.threshold.data.copy_(torch.tensor([[0.5], [0.35]]))  # keeps one of four
    sp.method.after_step(sp)
    assert part.threshold.flatten().tolist() == pytest.approx([0.0, 0.0] if dies else [0.5, 0.35])


def test_dst_guard_below_the_reset_share_is_the_reset_and_above_it_the_exact_density() -> None:
    _, sp = single(DST(reset=0.1), [[0.1, 0.2, 0.3, 0.4, 0.5], [0.15, 0.25, 0.35, 0.45, 0.55]])
    layer, part = sp.layers[0], sp.layers[0].parametrization
    assert isinstance(part, FilterThreshold)
    part.threshold.data.fill_(9.0)
    assert part.limit_density(layer.weight(), 0.3)
    assert int(layer.active().sum()) == 3
    part.threshold.data.fill_(9.0)
    assert part.limit_density(layer.weight(), 0.1)
    assert bool(layer.active().all())


def test_a_negative_dst_threshold_prunes_nothing() -> None:
    layer, sp = single(DST(), [[0.5, 0.0]])
    sp.thresholds()[0].data.fill_(-1.0)
    assert layer.weight.tolist() == [[0.5, 0.0]]
    assert sp.layers[0].active().tolist() == [[True, False]]


@pytest.mark.parametrize("module", [nn.Conv2d(3, 5, 2), nn.ConvTranspose2d(3, 5, 2), nn.Linear(3, 5)])
def test_dst_has_one_threshold_an_output_channel(module: nn.Module) -> None:
    sp = sparsify(nn.Sequential(copy.deepcopy(module)), DST(), epochs=1, steps_per_epoch=1)
    assert sp.thresholds()[0].numel() == 5
    assert sp.thresholds()[0].shape[sp.layers[0].channel_dim] == 5


# ------------------------------------------------------------------------------------------------------------ OptG


def test_optg_threshold_is_global_and_ties_go_by_index() -> None:
    _, sp, _ = attach(OptG(sparsity=0.5, beta=100.0), epochs=5)
    for layer, score in zip(sp.layers, (1.0, 0.0), strict=True):
        part = layer.parametrization
        assert isinstance(part, Scored)
        part.score.data.fill_(score)
    method = sp.method
    assert isinstance(method, OptG)
    method._prune(sp, 0.5)  # 128 of 256: all 64 of the second layer, the last 64 of the first
    first, second = (layer.active().flatten() for layer in sp.layers)
    assert not second.any()
    assert first.tolist() == [True] * 128 + [False] * 64


@settings(max_examples=30, deadline=None)
@given(scores=st.lists(st.integers(0, 3), min_size=10, max_size=10), sparsity=st.floats(0, 0.99))
def test_optg_counts_are_exact_whatever_the_ties(scores: list[int], sparsity: float) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    sp = sparsify(model, OptG(sparsity=0.5, beta=100.0), epochs=4, steps_per_epoch=1)
    method = sp.method
    assert isinstance(method, OptG)
    for tensor, values in zip(sp.thresholds(), (scores[:6], scores[6:]), strict=True):
        tensor.data.copy_(torch.tensor(values).reshape(tensor.shape))
    method._prune(sp, sparsity)
    kept = torch.cat([layer.active().flatten() for layer in sp.layers]).tolist()
    assert sum(kept) == 10 - round(sparsity * 10)
    worst_kept = min((score for score, keep in zip(scores, kept, strict=True) if keep), default=9)
    best_pruned = max((score for score, keep in zip(scores, kept, strict=True) if not keep), default=-1)
    assert best_pruned <= worst_kept


def test_optg_follows_the_ramp_with_exact_counts() -> None:
    model, sp, optimizer = attach(OptG(sparsity=0.8, beta=3.0), epochs=4)
    zeros = []
    for data in (batches(12)[i : i + 3] for i in range(0, 12, 3)):
        zeros.append(256 - sum(int(layer.active().sum()) for layer in sp.layers))
        train(model, sp, optimizer, data)
    ramp = [round(256 * 0.8 / (1 + math.exp(-3.0 * (epoch - 2)))) for epoch in (1, 2, 3)]
    assert zeros == [0, *ramp]
    assert sp.sparsity() == pytest.approx(ramp[-1] / 256)  # no further pruning once the run is over


def test_optg_scales_the_lr_of_scores_for_the_step_alone() -> None:
    model, sp, optimizer = attach(OptG(sparsity=0.5, beta=1.0), epochs=6)
    seen = []
    optimizer.register_step_pre_hook(lambda opt, *_: seen.append([group["lr"] for group in opt.param_groups]))
    train(model, sp, optimizer, batches(4))
    assert seen[0] == pytest.approx([0.05, 0.05 / (1 + math.exp(3))])
    assert seen[3] == pytest.approx([0.05, 0.05 / (1 + math.exp(2))])
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]


def test_optg_refuses_scores_in_a_group_with_weights() -> None:
    model = torch_net()
    sp = sparsify(model, OptG(beta=9.0), epochs=4, steps_per_epoch=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sp.bind(optimizer)
    x, y = batches(1)[0]
    loss_of(model(x), y).backward()
    with pytest.raises(ValueError, match=r"sp\.param_groups"):
        optimizer.step()


def test_optg_says_when_its_ramp_does_not_get_there() -> None:
    with pytest.warns(SparsityWarning, match="beta of at least 4.6"):
        attach(OptG(sparsity=0.8), epochs=4)


def test_optg_decays_stored_weights_also_where_they_are_pruned() -> None:
    _, sp, optimizer = attach(OptG(sparsity=0.5, beta=9.0))
    part = sp.layers[0].parametrization
    assert isinstance(part, Scored)
    part.mask.fill_(False)
    before = sp.layers[0].weight().clone()
    x, y = batches(1)[0]
    loss_of(sp.model(x), y).backward()
    optimizer.step()
    torch.testing.assert_close(sp.layers[0].weight(), before * (1 - 0.05 * 1e-3))
    assert part.score.grad is not None


# ------------------------------------------------------------------------------------------------------------ LTP and CS


def test_ltp_by_hand() -> None:
    layer, sp = single(LTP(temperature=0.5), [[1.0, -3.0]])  # |w|: mean 2, variance 1
    part = sp.layers[0].parametrization
    assert isinstance(part, SoftPruned)
    part.threshold.data.fill_(2.0)
    keep = [1 / (1 + math.exp(-(square - 2.0) / 0.5)) for square in (1.0, 9.0)]
    assert layer.weight[0].tolist() == pytest.approx([keep[0], -3 * keep[1]])
    layer.weight.sum().backward()
    grad = sp.layers[0].stored.grad
    assert grad is not None
    assert grad[0].tolist() == pytest.approx(keep)  # without the way through the sigmoid
    slopes = [each * (1 - each) / 0.5 for each in keep]
    assert part.threshold.grad is not None
    assert float(part.threshold.grad) == pytest.approx(-(slopes[0] - 3 * slopes[1]))
    assert value(sp.penalty()) == pytest.approx(1e-5 * sum(keep))
    assert float(part.threshold_values()) == pytest.approx(math.sqrt(2))


def test_ltp_penalty_reaches_weights_only_when_asked() -> None:
    for asked in (False, True):
        _, sp = single(LTP(penalty_on_weights=asked, temperature=1.0), [[1.0, -3.0]])
        loss = sp.penalty()
        assert isinstance(loss, Tensor)
        loss.backward()
        assert (sp.layers[0].stored.grad is not None) is asked


def test_ltp_threshold_stays_at_or_above_zero_and_its_guard_lowers_it() -> None:
    _, sp = single(LTP(), [[0.1, 0.2, 0.3, 0.4]])
    part = sp.layers[0].parametrization
    assert isinstance(part, SoftPruned)
    part.threshold.data.fill_(-0.3)
    sp.method.after_step(sp)
    assert part.threshold.item() == 0.0
    part.threshold.data.fill_(1e6)
    assert part.limit_density(sp.layers[0].weight(), 0.5)
    assert sp.layers[0].active().tolist() == [[False, False, True, True]]


def test_cs_starts_at_the_weight_itself_and_ends_with_the_scaled_ticket() -> None:
    layer, sp = single(CS(s_init=-0.1, dense_last=False), [[1.0, -2.0, 3.0]])
    plain = torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(layer.weight.detach(), plain)
    part = sp.layers[0].parametrization
    assert isinstance(part, Logits)
    part.logit.data.copy_(torch.tensor([[0.2, 0.0, -0.2]]))
    assert sp.sparsity() == pytest.approx(2 / 3)  # s = 0 is not kept
    sp.finalize()
    torch.testing.assert_close(layer.weight.detach(), torch.tensor([[1 + math.exp(0.1), 0.0, 0.0]], dtype=torch.float64))


def test_cs_between_rounds_by_hand() -> None:
    model, sp, optimizer = attach(CS(s_init=0.05, rounds=2, final_beta=100.0), epochs=2)
    assert [layer.name for layer in sp.layers] == ["0"]  # the last layer stays dense
    part = sp.layers[0].parametrization
    assert isinstance(part, Logits)
    train(model, sp, optimizer, batches(6))
    assert float(part.beta) == 100.0
    weight = sp.layers[0].weight().clone()
    part.logit.data.fill_(-0.03)
    part.logit.data[0, 0] = 0.02
    assert sp.next_round(optimizer)
    assert float(part.beta) == 1.0
    assert part.logit[0, 0].item() == 0.05  # min(100 * .02, s0)
    assert part.logit[0, 1].item() == pytest.approx(-3.0)
    torch.testing.assert_close(sp.layers[0].weight(), weight)  # no rewind_epoch: weights go on
    assert not bool(part.hard)
    train(model, sp, optimizer, batches(6))
    assert bool(part.hard)
    assert not sp.next_round(optimizer)


def test_cs_refuses_the_epochs_of_all_rounds_together() -> None:
    model, sp, optimizer = attach(CS(rounds=2), epochs=4)
    train(model, sp, optimizer, batches(6))
    with pytest.raises(ValueError, match=r"epochs=4, and a round has trained 2: .* give epochs=2"):
        sp.next_round(optimizer)


def test_a_state_of_cs_that_counts_all_rounds_goes_on_in_its_round() -> None:
    method, data = CS(s_init=0.003, rounds=2, final_beta=50.0), batches(12)
    model, sp, optimizer = attach(method, epochs=2)
    train(model, sp, optimizer, data[:6])
    sp.next_round(optimizer)
    train(model, sp, optimizer, data[6:9])
    saved = copy.deepcopy((model.state_dict(), sp.state_dict(), optimizer.state_dict()))
    # as release 0.1 wrote it: time goes on through all rounds
    old = {**saved[1], "epochs": 4, "epoch": 3, "step": 9, "epoch_start": 9, "memory": {"round": 1, "round_start": 2}}
    again, sp_again, optimizer_again = attach(method, epochs=2)
    again.load_state_dict(saved[0])
    sp_again.load_state_dict(old)
    optimizer_again.load_state_dict(saved[2])
    assert (sp_again.epoch, sp_again.step, sp_again.memory) == (1, 3, {"round": 1})
    for net, run, opt in ((model, sp, optimizer), (again, sp_again, optimizer_again)):
        train(net, run, opt, data[9:])
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


def test_cs_rewinds_weights_and_norms_but_not_logits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()
    start = copy.deepcopy(model.state_dict())
    sp = sparsify(model, CS(s_init=0.01, train_ticket=True, rewind_epoch=0), epochs=1, steps_per_epoch=3, guard=None)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.1)
    sp.bind(optimizer)
    train(model, sp, optimizer, batches(3))
    part = sp.layers[0].parametrization
    assert isinstance(part, Logits)
    logits, ticket = part.logit.detach().clone(), sp.layers[0].active().clone()
    assert sp.next_round(optimizer)
    for key, early in start.items():
        own = model.state_dict()["0.parametrizations.weight.original" if key == "0.weight" else key]
        assert torch.equal(own, early), key
    assert torch.equal(part.logit, logits)
    assert sp.penalty() == 0.0
    train(model, sp, optimizer, batches(3))
    assert torch.equal(sp.layers[0].active(), ticket)
    assert (torch.count_nonzero(sp.layers[0].effective()) == ticket.sum()).item()


@pytest.mark.parametrize("only_ticket", [False, True])
def test_cs_rewinds_every_round_or_only_the_ticket(only_ticket: bool) -> None:
    method = CS(s_init=0.01, rounds=3, train_ticket=True, rewind_epoch=0, rewind_only_ticket=only_ticket)
    model, sp, optimizer = attach(method, epochs=1)
    early = sp.layers[0].weight().clone()
    for expects_early in (not only_ticket, not only_ticket, True):
        train(model, sp, optimizer, batches(3))
        trained = sp.layers[0].weight().clone()
        assert sp.next_round(optimizer)
        assert torch.equal(sp.layers[0].weight(), early if expects_early else trained)
        assert not torch.equal(early, trained)
    assert not method.is_searching(sp)


@pytest.mark.parametrize("method", [METHODS[2], METHODS[3]], ids=["ltp", "cs"])
def test_soft_masks_become_hard_at_the_end_or_at_finalize(method: Method) -> None:
    model, sp, optimizer = attach(method)
    train(model, sp, optimizer, batches(9))
    assert all(bool((layer.effective() != 0).all()) for layer in sp.layers)  # still soft
    other, early, other_optimizer = attach(method)
    train(other, early, other_optimizer, batches(9))
    survivors = [layer.active() for layer in early.layers]
    early.finalize()
    for layer, kept in zip(early.layers, survivors, strict=True):
        assert torch.equal(layer.stored != 0, kept)
    train(model, sp, optimizer, batches(3))
    for layer in sp.layers:
        assert isinstance(layer.parametrization, SoftMask)
        assert torch.equal(layer.effective() != 0, layer.active())
    before = [layer.effective() for layer in sp.layers]
    sparsity = sp.sparsity()
    sp.finalize()
    assert all(torch.equal(layer.stored, seen) for layer, seen in zip(sp.layers, before, strict=True))
    assert 0 < sparsity < 1


def test_a_hard_mask_does_not_move_when_its_weights_do() -> None:
    model, sp, optimizer = attach(LTP(penalty_weight=0.01, temperature=0.05, hard_epoch=1))
    train(model, sp, optimizer, batches(3))
    masks = [layer.active().clone() for layer in sp.layers]
    train(model, sp, optimizer, batches(9))
    for layer in sp.layers:
        layer.stored.data.mul_(0.01)
    assert all(torch.equal(layer.active(), mask) for layer, mask in zip(sp.layers, masks, strict=True))
    assert sp.penalty() == 0.0
    assert not sp.layers[0].parametrization.limit_density(sp.layers[0].weight(), 1.0)


# ------------------------------------------------------------------------------------------------------------ SCL


def test_scl_gradients_and_penalty_by_hand() -> None:
    layer, sp = single(SCL(penalty_weight=0.8), [[0.5, -2.0], [1.0, 1.0]])
    part = sp.layers[0].parametrization
    assert isinstance(part, Connected)
    part.score.data.copy_(torch.tensor([[0.0, -0.1], [0.3, 0.2]]))
    assert layer.weight.tolist() == [[0.5, 0.0], [1.0, 1.0]]  # m = 0 is connected
    assert value(sp.penalty()) == pytest.approx(0.8 * 3 / 4)
    (layer.weight.sum() + sp.penalty()).backward()
    grad = sp.layers[0].stored.grad
    assert grad is not None
    assert grad.tolist() == [[1.0, 0.0], [1.0, 1.0]]
    assert part.score.grad is not None
    assert part.score.grad.flatten().tolist() == pytest.approx([0.7, -1.8, 1.2, 1.2])  # G v + .8 / 4
    optimizer = torch.optim.SGD(sp.param_groups(), lr=1.0)
    sp.bind(optimizer)
    optimizer.step()
    row = math.hypot(0.7, 1.8)
    moved = [-0.7 / row, -0.1 + 1.8 / row, 0.3 - math.sqrt(0.5), 0.2 - math.sqrt(0.5)]
    assert part.score.flatten().tolist() == pytest.approx(moved)


def test_scl_price_falls_over_the_epochs() -> None:
    model, sp, optimizer = attach(SCL(penalty_weight=1.0, m_init=100.0))
    prices = []
    for data in (batches(12)[i : i + 3] for i in range(0, 12, 3)):
        prices.append(value(sp.penalty()))
        train(model, sp, optimizer, data)
    assert prices == pytest.approx([0.5 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4)])


# ------------------------------------------------------------------------------------------------------------ all of them


DENSE_WEIGHT_GRADIENT = {"dst", "optg", "scl"}


@every
def test_training_cost_is_the_hand_formula(method: Method) -> None:
    model, sp, optimizer = attach(method, example_input=torch.zeros(1, 12, dtype=torch.float64))
    macs = {"0": 192.0, "2": 64.0}
    spent = 0.0
    for x, y in batches(12):
        density = dict(zip([layer.name for layer in sp.layers], sp.densities(), strict=True))
        for name, count in macs.items():
            kept = density.get(name, 1.0)
            spent += count * (2 * kept + 1 if method.about.name in DENSE_WEIGHT_GRADIENT else 3)
        train(model, sp, optimizer, [(x, y)])
    assert sp.cost.train_fraction == pytest.approx(spent / (12 * 3 * 256))


def test_hard_masks_cost_three_sparse_passes() -> None:
    for method in (LTP(hard_epoch=1, start_sparsity=0.5), CS(train_ticket=True, s_init=-0.01)):
        _, sp, _ = attach(method)
        density = torch.tensor([0.25])
        assert [float(each) for each in method.passes(density, sp)] == [1.0] * 3
        sp.epoch, sp.memory["round"] = 1, 1
        assert [float(each) for each in method.passes(density, sp)] == [0.25] * 3


@every
def test_resume_is_exact(method: Method) -> None:
    data = batches(12)
    model, sp, optimizer = attach(method)
    train(model, sp, optimizer, data[:6])
    saved = copy.deepcopy((model.state_dict(), sp.state_dict(), optimizer.state_dict()))
    train(model, sp, optimizer, data[6:])
    again, sp_again, optimizer_again = attach(method)
    again.load_state_dict(saved[0])
    sp_again.load_state_dict(saved[1])
    optimizer_again.load_state_dict(saved[2])
    train(again, sp_again, optimizer_again, data[6:])
    for key, own in model.state_dict().items():
        assert torch.equal(own, again.state_dict()[key]), key
    assert sp.densities() == sp_again.densities()


def test_cs_resumes_between_rounds() -> None:
    method = CS(s_init=0.003, rounds=2, rewind_epoch=1, final_beta=50.0)
    data = batches(12)
    model, sp, optimizer = attach(method, epochs=2)
    train(model, sp, optimizer, data[:6])
    saved = copy.deepcopy((model.state_dict(), sp.state_dict(), optimizer.state_dict()))
    again, sp_again, optimizer_again = attach(method, epochs=2)
    again.load_state_dict(saved[0])
    sp_again.load_state_dict(saved[1])
    optimizer_again.load_state_dict(saved[2])
    for net, run, opt in ((model, sp, optimizer), (again, sp_again, optimizer_again)):
        assert run.next_round(opt)
        train(net, run, opt, data[6:])
    for key, own in model.state_dict().items():
        assert torch.equal(own, again.state_dict()[key]), key


@every
def test_load_dense_starts_anew(method: Method) -> None:
    _, sp, _ = attach(method)
    other = torch_net(seed=7)
    sp.load_dense(other.state_dict())
    fresh = sparsify(other, method, epochs=4, steps_per_epoch=3, guard=None)
    for own, expected in zip(sp.layers, fresh.layers, strict=True):
        assert torch.equal(own.effective(), expected.effective())
        for a, b in zip(own.parametrization.buffers(), expected.parametrization.buffers(), strict=True):
            assert torch.equal(a, b)


@every
def test_forward_has_no_branch_on_tensors(method: Method) -> None:
    model, _, _ = attach(method)
    x, _ = batches(1)[0]
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))


@every
def test_bfloat16_weights_keep_float32_learned_tensors(method: Method) -> None:
    model = torch_net().bfloat16()
    sp = sparsify(model, method, epochs=4, steps_per_epoch=3, guard=None)
    (model(torch.ones(2, 12, dtype=torch.bfloat16)).float().sum() + sp.penalty()).backward()
    for threshold in sp.thresholds():
        assert threshold.dtype == torch.float32
        assert threshold.grad is not None
    assert all(layer.effective().dtype == torch.bfloat16 for layer in sp.layers)


@every
def test_first_and_last_can_stay_dense(method: Method) -> None:
    for first, last, left in ((True, False, ["2"]), (False, True, ["0"]), (False, False, ["0", "2"])):
        sp = sparsify(torch_net(), replace(method, dense_first=first, dense_last=last), epochs=4, steps_per_epoch=3)
        assert [layer.name for layer in sp.layers] == left


CHANGES: list[tuple[Method, dict[str, Any]]] = [
    (DST(penalty_weight=0.1), {"penalty_weight": 0.02}),
    (DST(penalty_weight=0.1), {"reset": 0.6}),
    (OptG(sparsity=0.7, beta=5.0), {"sparsity": 0.6}),
    (OptG(sparsity=0.7, beta=5.0), {"beta": 6.0}),
    (LTP(penalty_weight=0.01, temperature=0.05), {"penalty_weight": 0.02}),
    (LTP(penalty_weight=0.01, temperature=0.05), {"temperature": 0.1}),
    (LTP(penalty_weight=0.01, temperature=0.05), {"start_sparsity": 0.3}),
    (LTP(penalty_weight=0.01, temperature=0.05), {"penalty_on_weights": True}),
    (LTP(penalty_weight=0.01, temperature=0.05), {"hard_epoch": 2}),
    (CS(), {"s_init": 0.02}),
    (CS(), {"final_beta": 20.0}),
    (CS(), {"penalty_weight": 1e-2}),
    (CS(), {"rounds": 2}),
    (CS(), {"train_ticket": True}),
    (CS(rounds=2), {"rewind_epoch": 1}),
    (SCL(), {"penalty_weight": 1.0}),
    (SCL(penalty_weight=1.0), {"schedule": "linear"}),
    (SCL(), {"m_init": 0.5}),
    (SCL(), {"normalize": False}),
]


@pytest.mark.parametrize(("method", "change"), CHANGES, ids=[f"{m.about.name}-{next(iter(c))}" for m, c in CHANGES])
def test_every_field_changes_the_run(method: Method, change: dict[str, Any]) -> None:
    ends = []
    for each in (method, replace(method, **change)):
        model, sp, optimizer = attach(each, epochs=4 // each.traits.rounds)
        for start in (0, 6):
            train(model, sp, optimizer, batches(12)[start : start + 6])
            if each.traits.rounds > 1 and start == 0:
                sp.next_round(optimizer)
        ends.append(torch.cat([layer.effective().flatten() for layer in sp.layers]))
    assert not torch.equal(*ends)


@pytest.mark.parametrize(
    ("cls", "fields", "words"),
    [
        (DST, {"penalty_weight": -1.0}, "at least 0"),
        (DST, {"reset": 1.0}, "0 <= reset < 1"),
        (OptG, {"sparsity": 1.0}, "0 <= sparsity < 1"),
        (OptG, {"sparsity": -0.1}, "0 <= sparsity < 1"),
        (OptG, {"beta": 0.0}, "above 0"),
        (LTP, {"temperature": 0.0}, "above 0"),
        (LTP, {"start_sparsity": 1.0}, "0 <= start_sparsity < 1"),
        (LTP, {"hard_epoch": 0}, "at least 1"),
        (LTP, {"penalty_weight": -1.0}, "at least 0"),
        (CS, {"s_init": 60.0}, "-50 to 50"),
        (CS, {"final_beta": 1.0}, "above 1"),
        (CS, {"rounds": 0}, "at least 1"),
        (CS, {"penalty_weight": -1.0}, "at least 0"),
        (CS, {"rewind_epoch": 2}, "second round"),
        (CS, {"rewind_epoch": -1, "rounds": 2}, "at least 0"),
        (CS, {"rewind_only_ticket": True, "train_ticket": True}, "needs train_ticket=True and a rewind_epoch"),
        (CS, {"rewind_only_ticket": True, "rounds": 2, "rewind_epoch": 1}, "needs train_ticket=True and a rewind_epoch"),
        (SCL, {"m_init": -0.1}, "at least 0"),
        (SCL, {"penalty_weight": -0.1}, "at least 0"),
        (SCL, {"schedule": "cosin"}, "did you mean 'cosine'"),
    ],
)
def test_bad_fields_are_refused(cls: type[Method], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cls(**fields)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (LTP(hard_epoch=5), "beyond the run of 4 epochs"),
        (CS(rounds=2, rewind_epoch=4), "first round of 4 epochs"),
    ],
)
def test_runs_that_cannot_work_are_refused(method: Method, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attach(method)
