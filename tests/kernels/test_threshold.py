"""The soft threshold by the kernels: torch's own bits, for every instruction set."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from autosparse import functional
from autosparse.functional import soft_threshold
from autosparse.kernels import threshold

RELAXED = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def results(weight: Tensor, grad: Tensor, bound: float, gate: float, reach: float | None) -> list[Tensor]:
    leaf, at = weight.clone().requires_grad_(), torch.tensor([bound], requires_grad=True)
    effective = soft_threshold(leaf, at, gate, reach)
    effective.backward(grad)
    assert leaf.grad is not None
    assert at.grad is not None
    return [effective.detach(), leaf.grad, at.grad]


@RELAXED
@given(
    shape=st.sampled_from([(1,), (7,), (33, 5), (8, 3, 3, 3), (9, 17, 1, 1), (12, 1, 3, 3), (130, 140), (20000,)]),
    channels_last=st.booleans(),
    bound=st.floats(-0.5, 2.5, width=32),
    gate=st.floats(0, 1, width=32),
    reach=st.none() | st.floats(0, 2, width=32),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**20),
)
def test_it_equals_torch(
    instruction_set: str, shape: tuple[int, ...], channels_last: bool, bound: float, gate: float, reach: float | None,
    threads: int, seed: int,
) -> None:  # fmt: skip
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(seed)
    weight, grad = (torch.randn(shape, generator=generator) for _ in range(2))
    weight.view(-1)[0] = 0.0
    if len(shape) == 4 and channels_last:
        weight = weight.contiguous(memory_format=torch.channels_last)
    assert threshold.fits(weight)
    ours = results(weight, grad, bound, gate, reach)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional.native, "fits", lambda *_, **__: False)
        theirs = results(weight, grad, bound, gate, reach)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    assert ours[0].stride() == theirs[0].stride()
    assert int(functional.count_active(weight, torch.tensor([bound]))) == int((weight.abs() > max(bound, 0.0)).sum())
    exact = -(weight.sign().double() * theirs[1].double()).sum()
    assert abs(float(ours[2]) - float(exact)) <= 1e-6 * (1 + float(theirs[1].abs().sum()))


@pytest.mark.parametrize("function", ["sigmoid", "exp"])
def test_the_gradient_of_s_has_the_bits_of_torchs_backward_pass(native: None, function: str) -> None:
    for start in torch.linspace(-20, 3, 200).tolist():
        weight, grad = torch.randn(6, 5), torch.randn(6, 5)
        s = torch.tensor([start], requires_grad=True)
        functional.learned_soft_threshold(weight, s, function, torch.tensor([0.5]), None)[0].backward(grad)
        through_torch = torch.tensor([start], requires_grad=True)
        value = functional.threshold_value(through_torch, function)
        functional.learned_soft_threshold(weight, value, "identity", torch.tensor([0.5]), None)[0].backward(grad)
        assert torch.equal(s.grad, through_torch.grad)


@pytest.mark.parametrize("function", ["sigmoid", "exp", "identity"])
def test_a_gradient_of_a_gradient_goes_through_s(native: None, function: str) -> None:
    weight, start = torch.randn(6, 5), 0.3 if function == "identity" else -1.0

    def second() -> Tensor:
        leaf, s = weight.clone().requires_grad_(), torch.tensor([start], requires_grad=True)
        effective, _ = functional.learned_soft_threshold(leaf, s, function, torch.tensor([0.5]), None)
        (of_s,) = torch.autograd.grad(effective.square().sum(), s, create_graph=True)
        return torch.autograd.grad(of_s, s)[0]

    ours = second()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional.native, "fits", lambda *_, **__: False)
        assert torch.allclose(ours, second())
    assert ours.abs() > 0


def test_not_a_number_is_not_hidden(instruction_set: str) -> None:
    weight, grad = torch.tensor([float("nan"), 2.0, -0.1]), torch.tensor([1.0, float("inf"), 1.0])
    effective, of_weight, of_threshold = results(weight, grad, 0.5, 0.0, None)
    assert effective.isnan().tolist() == [True, False, False]
    assert of_weight[1] == float("inf")
    assert of_threshold == -float("inf")


def test_the_sum_does_not_depend_on_the_threads(native: None) -> None:
    weight, grad = torch.randn(100_000), torch.randn(100_000)
    sums = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        sums.add(float(threshold.soft_threshold_gradients(weight, grad, 0.5, 0.3, None)[1]))
    assert len(sums) == 1


def test_what_cannot_be_read_directly_goes_to_torch(native: None) -> None:
    weight = torch.randn(4, 6)
    assert threshold.fits(weight)
    assert not threshold.fits(weight.double())
    assert not threshold.fits(weight[:, ::2])
    assert not threshold.fits(weight, torch.ones(4, 1))
    assert not threshold.fits(weight.to("meta"))
    with FlopCounterMode(display=False):
        assert not threshold.fits(weight)
    assert soft_threshold(weight[:, ::2], 0.5).shape == (4, 3)


@pytest.mark.parametrize("shape", [(6, 5, 1, 1), (6, 1, 3, 3)])
def test_a_gradient_that_lies_as_the_weight_does_is_not_copied(
    native: None, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    """Where a dimension has one element, strides differ by name only."""
    weight, grad = torch.empty(shape, memory_format=torch.channels_last).normal_(), torch.randn(shape)
    assert weight.stride() != grad.stride()
    monkeypatch.setattr(Tensor, "copy_", lambda *_: pytest.fail("copied"))
    scaled, total = threshold.soft_threshold_gradients(weight, grad, 0.5, 0.0, None)
    expected = grad * (weight.abs() > 0.5)
    assert torch.equal(scaled, expected)
    assert total == pytest.approx(float((expected.double() * weight.sign()).sum()))


def test_gradients_of_gradients_go_through(native: None) -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        weight = torch.tensor([0.5, -0.3, 0.1, -0.9], dtype=dtype, requires_grad=True)
        at = torch.tensor([0.2], dtype=dtype, requires_grad=True)
        (first,) = torch.autograd.grad(soft_threshold(weight, at, 0.5).pow(3).sum(), weight, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), (weight, at)))
    for single, double in zip(*found, strict=True):
        assert torch.allclose(single.double(), double)
    assert torch.allclose(found[0][0], torch.tensor([1.8, -0.6, 0.0, -4.2]))  # 6 (|w| - T) sign(w) where active
