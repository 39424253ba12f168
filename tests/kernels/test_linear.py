"""sparse_linear against torch in float64: any leading shape, any density, every instruction set and thread count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .reference import Case, check, run_sparse, sparse_weight

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
EXAMPLES = settings(max_examples=25, **COMMON)
MANY = settings(max_examples=1000, **COMMON)


@st.composite
def linear_cases(draw: st.DrawFn) -> Case:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    inputs, outputs = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    leading = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    density = draw(st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]))
    weight = sparse_weight((outputs, inputs), density, generator)
    if draw(st.booleans()):
        weight[draw(st.integers(0, outputs - 1))] = 0
    x = torch.randn(*leading, inputs, generator=generator)
    form = draw(st.sampled_from(["contiguous", "strided input", "transposed weight"]))
    if form == "strided input":
        x = torch.randn(*leading, 2 * inputs, generator=generator)[..., ::2]
    elif form == "transposed weight":
        weight = weight.t().contiguous().t()
    bias = torch.randn(outputs, generator=generator) if draw(st.booleans()) else None
    return Case(x, weight, bias)


@EXAMPLES
@given(case=linear_cases(), wanted=st.sampled_from(["all", "active"]), threads=st.integers(1, 4))
def test_linear_agrees_with_float64(instruction_set: str, case: Case, wanted: str, threads: int) -> None:
    torch.set_num_threads(threads)
    check(case, wanted)


@pytest.mark.slow
@MANY
@given(case=linear_cases(), wanted=st.sampled_from(["all", "active"]), threads=st.integers(1, 4))
def test_a_thousand_linear_layers(instruction_set: str, case: Case, wanted: str, threads: int) -> None:
    torch.set_num_threads(threads)
    check(case, wanted)


@EXAMPLES
@given(case=linear_cases(), density=st.sampled_from([0.0, 0.3, 1.0]), threads=st.integers(1, 4))
def test_a_mask_says_where_the_gradient_goes(instruction_set: str, case: Case, density: float, threads: int) -> None:
    torch.set_num_threads(threads)
    check(case, torch.rand(case.weight.shape) < density)


@pytest.mark.parametrize("tokens", [0, 1, 15, 16, 17, 127, 128, 129, 600])
@pytest.mark.parametrize("threads", [1, 3])
def test_layers_of_several_blocks(instruction_set: str, tokens: int, threads: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(tokens)
    weight = sparse_weight((300, 700), 0.1, generator)
    check(Case(torch.randn(tokens, 700, generator=generator), weight, torch.randn(300, generator=generator)), "active")


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_same_result_at_every_run(instruction_set: str, threads: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    case = Case(torch.randn(900, 130, generator=generator), sparse_weight((90, 130), 0.2, generator), None)
    first = run_sparse(case, "active")
    for _ in range(5):
        again = run_sparse(case, "active")
        assert torch.equal(first.output, again.output)
        assert torch.equal(first.x, again.x)
        assert torch.equal(first.weight, again.weight)


def test_a_number_by_hand(instruction_set: str) -> None:
    weight = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    x = torch.tensor([[1.0, 3.0, 5.0]], requires_grad=True)
    from autosparse import kernels

    y = kernels.sparse_linear(x, weight, torch.tensor([0.5, -1.0]), "active")
    assert y.tolist() == [[6.5, -1.0]]
    y.backward(torch.tensor([[10.0, 100.0]]))
    assert x.grad is not None
    assert weight.grad is not None
    assert x.grad.tolist() == [[0.0, 20.0, 0.0]]
    assert weight.grad.tolist() == [[0.0, 30.0, 0.0], [0.0, 0.0, 0.0]]


def test_values_that_are_not_finite_are_not_zeros(instruction_set: str) -> None:
    weight = torch.zeros(20, 40)
    weight[3, 5], weight[7, 11] = float("nan"), float("inf")
    y = run_sparse(Case(torch.ones(33, 40), weight, None), "active").output
    assert y[:, 3].isnan().all()
    assert y[:, 7].isinf().all()
    assert not y[:, [0, 1, 2, 4, 5, 6]].any()
