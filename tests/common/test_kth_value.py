"""Exact k-th values and counts of tensors so large that a sample brackets them."""

from __future__ import annotations

import pytest
import torch

from autosparse.common.tensors import SAMPLE, kth_smallest, top_mask

SIZE = 8 * SAMPLE + 5  # no whole number of 64-bit words


def values(kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    found = torch.randn(SIZE, generator=generator)
    if kind == "many zeros":
        found[torch.rand(SIZE, generator=generator) < 0.9] = 0
    if kind == "few values":
        found = found.mul(3).round()
    if kind == "sorted":  # the sample is perfect
        found = found.sort().values
    if kind == "periodic":  # and here it sees one value only
        found = (torch.arange(SIZE) % (SIZE // SAMPLE)).float()
    if kind == "bfloat16":
        found = found.bfloat16()
    return found


@pytest.mark.parametrize("kind", ["normal", "many zeros", "few values", "sorted", "periodic", "bfloat16"])
@pytest.mark.parametrize("k", [1, 7, SIZE // 10, SIZE // 2, SIZE - 8, SIZE])
def test_it_is_the_kth_of_the_sorted_values(kind: str, k: int) -> None:
    given = values(kind)
    assert kth_smallest(given, k) == given.sort().values[k - 1]


def test_a_strided_view() -> None:
    given = torch.randn(2 * SIZE, generator=torch.Generator().manual_seed(1))[::2]
    assert kth_smallest(given, SIZE // 3) == given.sort().values[SIZE // 3 - 1]


def test_it_does_not_change_its_input() -> None:
    given = values("normal")
    before = given.clone()
    kth_smallest(given, SIZE // 3)
    assert torch.equal(given, before)


@pytest.mark.parametrize("kind", ["normal", "many zeros", "few values", "periodic"])
@pytest.mark.parametrize("count", [1, SIZE // 20, SIZE // 2, SIZE - 1])
def test_counts_are_exact_and_ties_go_to_the_lower_index(kind: str, count: int) -> None:
    given = values(kind)
    order = torch.sort(given, descending=True, stable=True).indices[:count]
    wanted = torch.zeros(SIZE, dtype=torch.bool)
    wanted[order] = True
    assert torch.equal(top_mask(given, count), wanted)
