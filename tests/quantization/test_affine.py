"""Scales, zero points and integers by hand, and what holds for every weight."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosparse.quantization.affine import activation_parameters, dequantize_weight, quantize_weight, weight_scales


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero_point"),
    [
        (0, 255, 1, 0),
        (3, 51, 0.2, 0),  # the range is widened to contain 0
        (-128, 127, 1, 128),
        (-1, 0, 1 / 255, 255),
        (-1, 3, 4 / 255, 64),  # 63.75
        (-5, -1, 5 / 255, 255),
        (0, 0, 1, 0),
    ],
)
def test_parameters_by_hand(low, high, scale, zero_point):
    found = activation_parameters(low, high)
    assert found == (pytest.approx(scale, rel=1e-7), zero_point)
    assert found[0] == float(torch.tensor(found[0], dtype=torch.float32))


@given(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30))
def test_every_value_of_the_range_is_half_a_step_from_a_level(first, second):
    low, high = min(first, second), max(first, second)
    scale, zero_point = activation_parameters(low, high)
    assert scale > 0
    assert 0 <= zero_point <= 255
    for value in (low, high, 0.0):
        level = min(255, max(0, round(value / scale) + zero_point))
        assert abs((level - zero_point) * scale - value) <= 0.501 * scale + 1e-37
    assert low < 0 or zero_point == 0


@pytest.mark.parametrize("ends", [(1, 0), (math.nan, 1), (0, math.inf), (-math.inf, 0)])
def test_ranges_that_cannot_be_are_errors(ends):
    with pytest.raises(ValueError, match="cannot quantize"):
        activation_parameters(*ends)


def test_weights_by_hand():
    weight = torch.tensor([[1.27, -0.5, 0.004], [0.0, 0.0, 0.0], [-254.0, 0.0, 3.0]])
    scales = weight_scales(weight)
    assert scales.tolist() == pytest.approx([0.01, 1, 2])
    integers = quantize_weight(weight, scales)
    assert integers.tolist() == [[127, -50, 0], [0, 0, 0], [-127, 0, 2]]  # 3 / 2 is halfway: to the even 2
    assert integers.dtype == torch.int8
    assert dequantize_weight(integers, scales)[2].tolist() == [-254, 0, 4]


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 10_000),
    st.sampled_from([(3, 5), (4, 2, 3, 3), (1, 1), (0, 4), (2, 0)]),
    st.integers(-40, 30),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_zeros_stay_and_the_error_is_half_a_step(seed, shape, exponent, dtype):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.ldexp(torch.randn(shape, generator=generator), torch.tensor(exponent)).to(dtype)
    weight = weight.nan_to_num_(0, 0, 0) * (torch.rand(shape, generator=generator) < 0.5)
    scales = weight_scales(weight)
    integers = quantize_weight(weight, scales)
    back = dequantize_weight(integers, scales)
    assert scales.dtype == torch.float32
    assert bool((integers[weight == 0] == 0).all())
    assert bool((integers != -128).all())
    if weight.numel():
        errors = (back - weight.float()).abs().flatten(1).amax(1)
        assert bool((errors <= 0.501 * scales).all())
        # quantizing what came back changes nothing
        assert torch.equal(quantize_weight(back, scales), integers)


def test_one_scale_per_output_channel_is_asked_for():
    with pytest.raises(ValueError, match="needs 2 scales"):
        quantize_weight(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(ValueError, match="int8"):
        dequantize_weight(torch.ones(2, 3), torch.ones(2))


def test_what_is_no_weight_is_an_error():
    for wrong in (torch.ones(3), torch.ones(2, 2, dtype=torch.int32)):
        with pytest.raises(ValueError, match="output and an input dimension"):
            weight_scales(wrong)
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="NaN or infinite"):
            weight_scales(torch.tensor([[1.0, value]]))
