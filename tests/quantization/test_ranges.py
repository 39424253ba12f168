"""Ranges by hand, and what holds for every kind of range."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosparse.quantization.affine import activation_parameters
from autosparse.quantization.ranges import Observer

KINDS = ("minmax", "percentile", "mse")


def observed(kind, *batches):
    observer = Observer(kind)
    for batch in batches:
        observer.update(batch)
    return observer.range()


def test_minmax_covers_every_batch():
    assert observed("minmax", torch.tensor([1.0, 2.0]), torch.tensor([[-0.5], [1.5]])) == (-0.5, 2.0)


def test_the_percentile_leaves_out_one_value_in_ten_thousand_on_each_side():
    values = torch.arange(-10_000, 10_001).float()  # 20,001 values: the lowest 2 and the highest 2 lie outside
    low, high = observed("percentile", values)
    assert low == pytest.approx(-9998, abs=4)  # the bins are 4 wide: 2 ** 14 / 4096
    assert high == pytest.approx(9998, abs=4)
    assert observed("percentile", torch.cat([torch.ones(99_999), torch.tensor([1e6])]))[1] < 200


def test_mean_squared_error_clips_a_far_outlier():
    values = torch.cat([torch.linspace(0, 1, 100_000), torch.tensor([10.0])])
    low, high = observed("mse", values)
    assert low == 0
    assert high == pytest.approx(best_of_a_grid(values), abs=1e-6)
    assert high < 10


def best_of_a_grid(values):
    """The same search without a histogram."""
    errors = {}
    for percent in range(10, 101):
        high = 10.0 * percent / 100
        scale = high / 255
        errors[high] = float((((values / scale).round().clamp(0, 255) * scale - values).double() ** 2).sum())
    return min(errors, key=errors.get)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), exponent=st.integers(-30, 30), shift=st.floats(-3, 3))
def test_the_order_and_the_split_of_batches_do_not_matter(kind, seed, exponent, shift):
    values = torch.ldexp(torch.randn(300, generator=torch.Generator().manual_seed(seed)) + shift, torch.tensor(exponent))
    first, second, third = values[:7], values[7:8], values[8:]
    assert observed(kind, values) == observed(kind, third, first, second)
    low, high = observed(kind, values)
    assert float(values.min()) <= low <= high <= float(values.max())


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_alone_have_the_range_zero(kind):
    assert observed(kind, torch.zeros(5)) == (0.0, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_negative_gives_zero_point_zero(kind):
    low, high = observed(kind, torch.rand(1000).relu())
    assert activation_parameters(low, high)[1] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_observed(kind):
    low, high = observed(kind, torch.tensor([-1.0, 0.0, 2.0], dtype=torch.bfloat16))
    assert -1 <= low < 0 < high <= 2


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "no values were seen"),
        ([torch.empty(0, 3)], "no values were seen"),
        ([torch.tensor([1.0, math.nan])], "NaN"),
        ([torch.tensor([1.0, -math.inf])], "infinite"),
    ],
)
def test_a_range_that_cannot_be_is_an_error(batches, message):
    with pytest.raises(ValueError, match=message):
        observed("minmax", *batches)


def test_an_unknown_kind_is_an_error():
    with pytest.raises(ValueError, match="minmax, percentile, mse"):
        Observer("average")
