"""ST-3, Feather, GraNet and AC/DC in numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autosparse
from autosparse import ACDC, ST3, AutoSparse, Feather, FeatherGA, GraNet
from autosparse.functional import channel_scale, shaped_threshold, shrunk
from autosparse.methods.families.fixed_mask import mask_of


def net(*values: list[list[float]]) -> nn.Sequential:
    """Linear layers with these weights."""
    layers = []
    for rows in values:
        linear = nn.Linear(len(rows[0]), len(rows), bias=False)
        linear.weight.data = torch.tensor(rows)
        layers.append(linear)
    return nn.Sequential(*layers)


def begin(model: nn.Module, method: autosparse.methods.Method, steps: int, lr: float = 0.0):
    sp = autosparse.sparsify(model, method, epochs=1, steps_per_epoch=steps, guard=None)
    opt = torch.optim.SGD(sp.param_groups(), lr=lr)
    sp.bind(opt)
    return sp, opt


def step(model: nn.Module, opt: torch.optim.Optimizer, inputs: Tensor) -> None:
    opt.zero_grad()
    model(inputs).sum().backward()
    opt.step()


# ------------------------------------------------------------------------------------------------------ the shaped threshold


def test_feathers_operator_in_numbers() -> None:
    """(|w|^3 - T^3)^(1/3) at T = 1: 2 gives the cube root of 7."""
    found = shrunk(torch.tensor([2.0, -2.0, 1.0, 0.5, -3.0]), torch.tensor([1.0]), 3.0)
    torch.testing.assert_close(found, torch.tensor([7 ** (1 / 3), -(7 ** (1 / 3)), 0.0, 0.0, -(26 ** (1 / 3))]))


def test_shape_one_is_soft_and_infinity_hard() -> None:
    weight, bound = torch.tensor([2.0, -0.5, -3.0]), torch.tensor([1.0])
    assert shrunk(weight, bound, 1.0).tolist() == [1.0, 0.0, -2.0]
    assert shrunk(weight, bound, math.inf).tolist() == [2.0, 0.0, -3.0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=30), st.floats(0, 2, width=32), st.floats(1, 8))
def test_the_operator_keeps_signs_and_active_weights(values: list[float], bound: float, shape: float) -> None:
    weight, threshold = torch.tensor(values), torch.tensor([bound], dtype=torch.float32)
    found = shrunk(weight, threshold, shape)
    active = weight.abs() > threshold
    assert torch.equal(found != 0, active & (weight != 0))
    assert bool((found.abs() <= weight.abs()).all())
    assert bool((found * weight >= 0).all())
    twin = [math.copysign(max(abs(w) ** shape - bound**shape, 0) ** (1 / shape), w) if abs(w) > bound else 0 for w in values]
    np.testing.assert_allclose(found.numpy(), twin, rtol=2e-3, atol=2e-3)


def test_gradients_are_those_of_the_soft_threshold() -> None:
    weight = torch.tensor([2.0, -0.5, -3.0], requires_grad=True)
    threshold = torch.tensor([1.0], requires_grad=True)
    found = shaped_threshold(weight, threshold, torch.tensor([0.25]), None, 3.0, None)
    found.backward(torch.tensor([10.0, 20.0, 40.0]))  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert threshold.grad is not None
    assert weight.grad.tolist() == [10.0, 5.0, 40.0]
    assert threshold.grad.tolist() == [-(10.0 - 5.0 - 40.0)]  # -(sum of G * sign(w) * G_I)


def test_st3s_scale_in_numbers() -> None:
    """Channel (3, 1) with 3 active: r = (1.5 + 1e-6) / (2 + 1e-6); a channel without zeros keeps its scale."""
    weight = torch.tensor([[3.0, 1.0], [4.0, 4.0]])
    found = channel_scale(weight, weight.abs() > 2, 0)
    r = (1.5 + 1e-6) / (2 + 1e-6)
    torch.testing.assert_close(found, torch.tensor([[1.01 / (r + 0.01)], [1.0]]))


# -------------------------------------------------------------------------------------------------------- ST-3 and Feather


def test_st3_is_the_shared_quantile_with_scaled_channels() -> None:
    """Eight weights, half of them below one threshold for both layers; a frozen run, so all values can be told."""
    model = net([[0.1, 0.8], [0.2, 0.7]], [[0.9, 0.3], [1.0, 0.4]])
    sp, opt = begin(model, ST3(target_sparsity=0.5), steps=4)
    for _ in range(4):
        step(model, opt, torch.ones(1, 2))
    bound = sp.report().layers[0].threshold
    assert bound == pytest.approx(0.55)  # midway between 0.4 and 0.7
    first = sp.layers[0].effective()
    r = (0.4 + 1e-6) / (0.45 + 1e-6)
    torch.testing.assert_close(first[0], torch.tensor([0.0, (0.8 - 0.55) * 1.01 / (r + 0.01)]))
    assert sp.sparsity() == 0.5
    assert sp.alpha == 1.0


def test_st3s_ramp_is_cubic_over_the_whole_run() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    sp, opt = begin(model, ST3(target_sparsity=0.8), steps=10)
    for done in range(1, 11):
        step(model, opt, torch.randn(2, 64))
        assert sp.sparsity() == pytest.approx(0.8 * (1 - (1 - done / 10) ** 3), abs=1e-3)


def test_sigma_measures_layers_in_units_of_their_spread() -> None:
    """Shapes (2, 2) and (2, 14): spreads 1/2 and 1/4, so the thresholds are two to one at every sparsity."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 14, bias=False))
    sp, opt = begin(model, ST3(target_sparsity=0.5, sigma=True), steps=3)
    for _ in range(3):
        step(model, opt, torch.ones(1, 2))
        first, second = (layer.threshold for layer in sp.report().layers)
        assert first is not None
        assert second is not None
        assert first / second == pytest.approx(2.0)


def test_pruned_weights_of_st3_receive_the_whole_gradient() -> None:
    model = net([[0.1, 0.8]], [[1.0]])
    sp, opt = begin(model, ST3(target_sparsity=0.5, start_sparsity=0.5, rescale=False), steps=2)
    last = float(sp.layers[1].effective())
    step(model, opt, torch.tensor([[2.0, 3.0]]))
    gradient = sp.layers[0].stored.grad
    assert gradient is not None
    torch.testing.assert_close(gradient, torch.tensor([[2.0, 3.0]]) * last)


def test_theta_is_halved_above_ninety_five_percent() -> None:
    assert Feather(target_sparsity=0.95).alpha == 1.0
    assert Feather(target_sparsity=0.98).alpha == 0.5
    assert Feather(target_sparsity=0.98, alpha=0.9).alpha == 0.9


def test_alpha_of_feather_with_annealing_is_zero_from_the_end_of_the_ramp() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    sp = autosparse.sparsify(model, FeatherGA(target_sparsity=0.5), epochs=8, steps_per_epoch=1)
    opt = torch.optim.SGD(sp.param_groups(), lr=0.01)
    sp.bind(opt)
    alphas = []
    for _ in range(8):
        alphas.append(sp.alpha)
        step(model, opt, torch.randn(2, 8))
        sp.end_epoch(loss=1.0)
    assert alphas[0] == pytest.approx(1.0, abs=0.01)
    assert all(alphas[:4])
    assert not any(alphas[4:])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": 0.5}, "shape = 0.5; allowed: from 1"),
        ({"threshold": "sigma"}, "use g='identity'"),
        ({"zero_epoch": 1.0}, "zero_epoch = 1.0; allowed: a whole number of epochs, or a part of the run"),
        ({"zero_epoch": "end"}, "zero_epoch = 'end'; allowed: whole epochs"),
        ({"zero_epoch": "ramp"}, "set target_sparsity"),
        ({"horizon": 0}, "horizon = 0; it must be at least 1"),
    ],
)
def test_bad_fields_of_autosparse_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        AutoSparse(**fields)  # type: ignore[arg-type]


def test_parts_of_the_run_are_whole_epochs() -> None:
    method = AutoSparse(alpha=1.0, schedule="linear", zero_epoch=0.5, horizon=0.8)
    assert [method.annealing().at(epoch, 10) for epoch in (0, 4, 5)] == [1.0, 0.5, 0.0]


# --------------------------------------------------------------------------------------------------------------------- GraNet


def test_granet_prunes_globally_then_exchanges_in_each_layer() -> None:
    """Eight weights of which six are active; at the end of the ramp four stay, then one per layer moves to the largest |G|."""
    model = net([[1.0] * 4], [[1.0]] * 4)
    method = GraNet(
        sparsity=0.5, start_sparsity=0.25, distribution="uniform", dense_first=False, update_every=2, ramp_end=0.5,
        drop_fraction=0.5, final_drop_fraction=0.5,
    )  # fmt: skip
    sp, opt = begin(model, method, steps=4)
    for layer, values in zip(sp.layers, ([4.0, 0.3, 3.0, 0.0], [2.0, 0.1, 0.0, 6.0]), strict=True):
        layer.stored.data.copy_(torch.tensor(values).reshape(layer.shape))
        mask_of(layer).copy_(layer.stored != 0)
    inputs = torch.tensor([[1.0, 1.0, 1.0, 9.0]])
    for _ in range(3):
        step(model, opt, inputs)
    # after the global step: |w| 4, 3 of the first layer and 2, 6 of the second; half of each (one weight) is exchanged.
    # first layer: 3 goes, the input of 9 has the largest gradient. second layer: 2 goes and, all gradients being equal, returns
    assert mask_of(sp.layers[0]).tolist() == [[True, False, False, True]]
    assert mask_of(sp.layers[1]).flatten().tolist() == [True, False, False, True]
    assert sp.layers[0].weight().tolist() == [[4.0, 0.0, 0.0, 0.0]]
    assert sp.sparsity() == 0.5


def test_granet_reaches_its_sparsity_whatever_the_period() -> None:
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    sp, opt = begin(model, GraNet(sparsity=0.9, update_every=7), steps=40, lr=0.01)
    seen = []
    for _ in range(40):
        step(model, opt, torch.randn(4, 16))
        seen.append(sp.sparsity())
    assert seen[0] == pytest.approx(0.5, abs=0.01)
    assert seen == sorted(seen)
    assert seen[12] == seen[-1] == pytest.approx(0.9, abs=0.002)  # ramp_end 0.3 of 40 steps


@pytest.mark.parametrize("fields", [{"start_sparsity": 0.95}, {"ramp_end": 0.0}, {"final_drop_fraction": 0.6}])
def test_bad_fields_of_granet_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        GraNet(sparsity=0.9, **fields)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------- AC/DC


def test_the_phases_are_those_of_the_authors() -> None:
    """100 epochs of one step: sparse from 10, 20, ..., 70 and 85, dense from 15, 25, ..., 65 and 75."""
    switches = ACDC().switches(100)
    assert [step for step, is_sparse in switches if is_sparse] == [10, 20, 30, 40, 50, 60, 70, 85]
    assert [step for step, is_sparse in switches if not is_sparse] == [15, 25, 35, 45, 55, 65, 75]


def test_pruned_weights_return_from_zero_and_a_dense_twin_is_left() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    sp, opt = begin(model, ACDC(sparsity=0.75, phase=0.1), steps=20, lr=0.05)
    with pytest.raises(RuntimeError, match="from the last sparse phase on"):
        sp.method.dense_twin(sp)  # type: ignore[attr-defined]
    densities = []
    for _ in range(20):
        densities.append(round(1 - sp.sparsity(), 2))
        if sp.step == 4:
            returned = [(layer.weight() == 0).sum() for layer in sp.layers]
            assert sum(returned) == 96  # all weights are active again, those of the sparse phase are still 0
        step(model, opt, torch.randn(4, 8))
    assert densities == ([1.0] * 2 + [0.25] * 2) * 3 + [1.0] * 5 + [0.25] * 3
    twin = sp.method.dense_twin(sp)  # type: ignore[attr-defined]
    assert sum(int((value != 0).sum()) for value in twin.values()) > 64  # 32 of 128 are active in the sparse network
    plain = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    plain.load_state_dict(twin)
    assert sp.state_dict()["memory"]["dense_twin"].keys() == twin.keys()


@pytest.mark.parametrize("fields", [{"phase": 0.0}, {"last_sparse": 0.0}, {"warm_up": 0.9}, {"sparsity": 1.0}])
def test_bad_fields_of_acdc_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        ACDC(**fields)  # type: ignore[arg-type]


def test_a_run_without_room_for_phases_says_so() -> None:
    with pytest.warns(autosparse.SparsityWarning, match="has no room for phases of 0.05"):
        autosparse.sparsify(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), ACDC(), epochs=1, steps_per_epoch=10)
