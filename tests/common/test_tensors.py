"""Exact k-th values and counts, and random streams."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosparse.common.tensors import SAMPLE, kth_smallest, random_stream, split_at, top_mask


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.floats(0, 1), st.sampled_from(["normal", "ties", "sorted", "constant"]))
def test_kth_smallest_equals_a_sort_also_when_it_samples(seed, fraction, kind):
    values = torch.randn(9 * SAMPLE, generator=torch.Generator().manual_seed(seed))
    if kind == "ties":
        values = (values * 3).round()
    if kind == "sorted":
        values = values.sort().values
    if kind == "constant":
        values = torch.zeros_like(values)
    k = max(1, round(fraction * values.numel()))
    assert kth_smallest(values, k) == values.sort().values[k - 1]


def test_k_outside_the_tensor_is_an_error():
    for k in (0, 5):
        with pytest.raises(ValueError, match=r"outside 1\.\.4"):
            kth_smallest(torch.ones(4), k)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(0, 30))
def test_top_mask_counts_exactly_and_gives_ties_to_the_lower_index(scores, count):
    mask = top_mask(torch.tensor(scores, dtype=torch.float32), count)
    best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:count]
    assert sorted(torch.nonzero(mask).reshape(-1).tolist()) == sorted(best)


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        ([1.0, math.nan, 2.0], 1, [1]),
        ([1.0, math.nan, 2.0], 2, [1, 2]),
        ([0.0, 0.0, 0.0, 0.0, math.nan], 3, [0, 1, 4]),
        ([math.nan, 1.0, math.nan, math.nan], 2, [0, 2]),
        ([math.nan, math.nan, math.nan], 2, [0, 1]),
    ],
)
def test_top_mask_counts_nan_as_the_largest(scores, count, expected):
    assert torch.nonzero(top_mask(torch.tensor(scores), count)).reshape(-1).tolist() == expected


def test_split_at_lies_between_two_magnitudes():
    values = torch.tensor([0.4, 0.1, 0.2])
    assert split_at(values, 0).item() == pytest.approx(0.05), "half the smallest: nothing is cut, and it can be learned"
    assert split_at(torch.tensor([0.0, 0.0, 0.4]), 1).item() == pytest.approx(0.2), "more zeros than asked for"
    assert split_at(torch.zeros(3), 1).item() == 0
    assert split_at(values, 1).item() == pytest.approx(0.15)
    assert split_at(values, 3).item() == pytest.approx(0.4)


@given(st.integers(0, 2**31 - 1))
def test_a_random_stream_cannot_be_started_by_a_seed_of_the_user(seed):
    stream = random_stream(seed, "masks")
    read_by_torch = stream.initial_seed() % 2**32
    assert read_by_torch >= 2**31
    numbers = torch.rand(8, generator=stream)
    assert torch.equal(numbers, torch.rand(8, generator=torch.Generator().manual_seed(read_by_torch))), "only 32 bits count"
    assert torch.equal(numbers, torch.rand(8, generator=random_stream(seed, "masks")))
    assert not torch.equal(numbers, torch.rand(8, generator=random_stream(seed + 1, "masks")))
    assert not torch.equal(numbers, torch.rand(8, generator=random_stream(seed, "something else")))


@pytest.mark.parametrize("seed", [0.5, 1.0, "1", None])
def test_a_random_stream_takes_whole_numbers_only(seed):
    with pytest.raises(TypeError, match="integer"):
        random_stream(seed, "masks")
