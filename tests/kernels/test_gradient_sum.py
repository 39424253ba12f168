"""Gradients of one weight from several calls, added up in one tensor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autosparse import kernels
from autosparse.common.gradient_sums import sum_gradients_of


def sparse_weight(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(9, 7, generator=generator) * (torch.rand(9, 7, generator=generator) < 0.4)).requires_grad_()


@pytest.mark.parametrize("sparse", [(True, True, True), (True, True, False)])
@pytest.mark.parametrize("wanted", ["all", "active", "mask"])
def test_it_is_the_sum_of_what_each_call_would_give(instruction_set: str, wanted: str, sparse: tuple[bool, ...]) -> None:
    weight, inputs = sparse_weight(), [torch.randn(rows, 7) for rows in (5, 5, 2)]
    where: str | Tensor = torch.rand(9, 7) < 0.5 if wanted == "mask" else wanted
    expected = torch.zeros(9, 7)
    with sum_gradients_of(weight) as collected:
        for x in inputs:
            out = kernels.sparse_linear(x, weight, None, where, sparse)
            assert torch.autograd.grad(out.square().sum(), weight, allow_unused=True) == (None,)
    for x in inputs:
        expected += torch.autograd.grad(kernels.sparse_linear(x, weight, None, where, sparse).square().sum(), weight)[0]
    assert collected.total is not None
    torch.testing.assert_close(collected.total, expected)


def test_a_weight_of_zeros_adds_nothing(native: None) -> None:
    weight = torch.zeros(3, 7, requires_grad=True)
    with sum_gradients_of(weight) as collected:
        for _ in range(2):
            out = kernels.sparse_linear(torch.randn(4, 7), weight, None, "active")
            torch.autograd.grad(out.sum(), weight, allow_unused=True)
    assert collected.total is not None
    assert not collected.total.any()
