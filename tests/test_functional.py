"""The soft threshold with annealed gradient, by hand-computed numbers and by property."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosparse.functional import (
    gated_mask,
    is_active,
    power,
    power_inverse,
    soft_threshold,
    threshold_inverse,
    threshold_value,
)

WEIGHT = [0.0, 0.3, -0.3, 0.5, -0.8]
GRADIENT = [1.0, 2.0, 3.0, 4.0, 5.0]


def leaf(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def test_forward_shrinks_survivors_by_the_threshold():
    effective = soft_threshold(leaf(WEIGHT), 0.3)
    assert torch.allclose(effective, torch.tensor([0.0, 0.0, 0.0, 0.2, -0.5], dtype=torch.float64))
    assert not torch.signbit(effective[:3]).any(), "pruned weights are +0, also the negative ones"


def test_gradients_by_hand():
    """w = 0 and |w| = T receive alpha * G; dT = -sum(G * sign(w) * G_I)."""
    weight, threshold = leaf(WEIGHT), leaf([0.3])
    soft_threshold(weight, threshold, 0.25).backward(torch.tensor(GRADIENT, dtype=torch.float64))
    assert weight.grad.tolist() == [0.25, 0.5, 0.75, 4.0, 5.0]
    assert threshold.grad.item() == pytest.approx(-(0 + 0.25 * 2 - 0.25 * 3 + 4 - 5))


def test_gradient_of_s_carries_the_slope_of_g():
    s, weight = leaf([-1.0]), leaf([0.5, -0.1])
    soft_threshold(weight, torch.sigmoid(s), 0.5).backward(torch.tensor([2.0, 3.0], dtype=torch.float64))
    slope = torch.sigmoid(torch.tensor(-1.0, dtype=torch.float64)) * (
        1 - torch.sigmoid(torch.tensor(-1.0, dtype=torch.float64))
    )
    assert s.grad.item() == pytest.approx(-slope.item() * (2.0 - 0.5 * 3.0))


@pytest.mark.parametrize(
    ("v", "optimum", "expected"),
    [
        (0.5, 0.5, 0.0),  # 1: at the optimum
        (0.5, 0.2, 0.3),  # 2: v > 0, v* > 0
        (0.5, -0.2, 0.7),  # 3: v > 0, v* <= 0
        (-0.5, 0.2, 0.4 * -0.2),  # 4: v <= 0, v* > 0
        (-0.5, -0.2, 0.4 * 0.2),  # 5: v <= 0, v* <= 0
    ],
)
def test_the_five_cases_of_the_convergence_analysis(v, optimum, expected):
    """Eq. 5: d/dv of (h(v) - v*)^2 / 2 with alpha = 0.4; v = |w| - T, taken at w > 0."""
    threshold = 1.0
    weight = leaf([threshold + v])
    loss = 0.5 * (soft_threshold(weight, threshold, 0.4) - optimum) ** 2
    loss.sum().backward()
    assert weight.grad.item() == pytest.approx(expected)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.01, 1.5))
def test_alpha_zero_is_str_and_alpha_one_straight_through(seed, threshold):
    generator = torch.Generator().manual_seed(seed)
    values, gradient = torch.randn(2, 40, dtype=torch.float64, generator=generator)
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    t_ours, t_theirs = leaf([threshold]), leaf([threshold])
    soft_threshold(ours, t_ours, 0.0).backward(gradient)
    (theirs.sign() * torch.relu(theirs.abs() - t_theirs)).backward(gradient)
    assert torch.equal(ours.grad, theirs.grad)
    assert torch.allclose(t_ours.grad, t_theirs.grad)
    straight = values.clone().requires_grad_()
    soft_threshold(straight, threshold, 1.0).backward(gradient)
    assert torch.equal(straight.grad, gradient)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_finite_differences_where_the_function_is_smooth(seed):
    """With gate 0 and no weight near the threshold the hand-written gradients are the true ones."""
    weight = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weight = torch.where((weight.abs() - 0.5).abs() < 0.01, weight + 0.1, weight)
    inputs = (weight.requires_grad_(), leaf([0.5]))
    assert torch.autograd.gradcheck(lambda w, t: soft_threshold(w, t, 0.0), inputs, eps=1e-7, atol=1e-5)


def test_reach_cuts_the_gradient_of_the_smallest_weights_and_of_their_share_of_s():
    weight, threshold = leaf([0.1, 0.3, -0.45, 0.9]), leaf([0.5])
    soft_threshold(weight, threshold, 0.5, 0.3).backward(torch.ones(4, dtype=torch.float64))
    assert weight.grad.tolist() == [0.0, 0.5, 0.5, 1.0]
    assert threshold.grad.item() == pytest.approx(-(0.5 - 0.5 + 1.0))


def test_reach_above_the_threshold_never_takes_gradient_from_active_weights():
    weight = leaf([0.6, 0.9])
    soft_threshold(weight, 0.5, 0.5, 0.8).backward(torch.ones(2, dtype=torch.float64))
    assert weight.grad.tolist() == [1.0, 1.0]


def test_one_threshold_a_channel():
    weight, threshold = leaf([[0.2, -0.4], [0.2, -0.4]]), leaf([[0.1], [0.3]])
    effective = soft_threshold(weight, threshold, 0.5)
    effective.backward(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))
    assert torch.allclose(effective.detach(), torch.tensor([[0.1, -0.3], [0.0, -0.1]], dtype=torch.float64))
    assert torch.allclose(threshold.grad, torch.tensor([[-(1.0 - 2.0)], [-(1.5 - 4.0)]], dtype=torch.float64))


def test_a_negative_threshold_prunes_nothing():
    weight = leaf([0.2, -0.4])
    assert torch.equal(soft_threshold(weight, -0.3).detach(), weight.detach())
    assert is_active(weight.detach(), torch.tensor([-0.3])).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_dtype_keeps_the_weights_dtype(dtype):
    weight = torch.linspace(-1, 1, 65).to(dtype).requires_grad_()
    threshold = torch.tensor([0.3], requires_grad=True)
    effective = soft_threshold(weight, threshold, 0.5)
    effective.sum().backward()
    assert effective.dtype == weight.grad.dtype == dtype
    assert threshold.grad.dtype == torch.float32
    assert torch.equal(effective != 0, is_active(weight.detach(), threshold.detach()))


def test_it_saves_only_weight_threshold_and_gate():
    saved = []
    weight, threshold = torch.randn(1000, requires_grad=True), torch.tensor([0.5], requires_grad=True)
    gate = torch.tensor([0.5])
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        soft_threshold(weight, threshold, gate)
    assert {tensor.data_ptr() for tensor in saved} == {weight.data_ptr(), threshold.data_ptr(), gate.data_ptr()}


def test_operators_compile_and_export():
    weight, threshold = torch.randn(64, requires_grad=True), torch.tensor([0.4], requires_grad=True)

    def loss(w, t, gate):
        return (soft_threshold(w, t, gate) ** 2).sum() + gated_mask(w, w.detach() > 0, gate).sum()

    expected = torch.autograd.grad(loss(weight, threshold, torch.tensor([0.3])), (weight, threshold))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(weight, threshold, torch.tensor([0.3])), (weight, threshold))
    assert all(torch.allclose(a, b) for a, b in zip(expected, got, strict=True))

    class Module(torch.nn.Module):
        def forward(self, w):
            return soft_threshold(w, torch.tensor([0.4]), torch.tensor([0.3]))

    program = torch.export.export(Module(), (weight.detach(),))
    assert torch.equal(program.module()(weight.detach()), soft_threshold(weight.detach(), 0.4))


def test_gated_mask_by_hand():
    weight, mask = leaf([1.0, 2.0, 3.0]), torch.tensor([True, False, False])
    effective = gated_mask(weight, mask, 0.5, torch.tensor([True, True, False]))
    effective.backward(torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64))
    assert effective.tolist() == [1.0, 0.0, 0.0]
    assert weight.grad.tolist() == [1.0, 0.5, 0.0]


def test_power_and_its_inverse():
    weight = torch.tensor([-0.25, 0.0, 0.5], dtype=torch.float64)
    assert power(weight, 2.0).tolist() == [-0.0625, 0.0, 0.25]
    assert torch.allclose(power(power_inverse(weight, 1.7), 1.7), weight)


@pytest.mark.parametrize("function", ["sigmoid", "exp", "identity"])
def test_threshold_functions_and_inverses(function):
    s = torch.tensor([-3.0, -0.5], dtype=torch.float64)
    expected = {"sigmoid": [0.04742587317756678, 0.3775406687981454], "exp": [0.049787068367863944, 0.6065306597126334]}
    value = threshold_value(s, function)
    assert value.tolist() == pytest.approx(expected.get(function, s.tolist()))
    assert torch.allclose(threshold_inverse(value, function), s)
    assert torch.isfinite(threshold_inverse(torch.zeros(1), function)).all()


def test_it_works_under_torch_func():
    weight = torch.tensor([0.5, 0.2, -0.7])
    gradient = torch.func.grad(lambda w: soft_threshold(w, torch.tensor([0.3]), 0.5).sum())(weight)
    assert gradient.tolist() == [1.0, 0.5, 1.0]
