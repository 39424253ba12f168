"""sparse_conv2d against torch in float64: any kernel, stride, padding, dilation, size, memory order and batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .reference import Case, check, run_sparse, sparse_weight

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
EXAMPLES = settings(max_examples=30, **COMMON)
MANY = settings(max_examples=1000, **COMMON)


@st.composite
def conv_cases(draw: st.DrawFn) -> Case:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    pair = st.tuples
    kernel = draw(st.one_of(st.sampled_from([(1, 1), (3, 3)]), pair(st.integers(1, 4), st.integers(1, 4))))
    stride = draw(st.one_of(st.just((1, 1)), pair(st.integers(1, 4), st.integers(1, 4))))
    padding = draw(pair(st.integers(0, 3), st.integers(0, 3)))
    dilation = draw(st.one_of(st.just((1, 1)), pair(st.integers(1, 3), st.integers(1, 3))))
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, p, d in zip(kernel, padding, dilation, strict=True)]
    size = [draw(st.integers(low, low + 12)) for low in least]
    images, inputs, outputs = draw(st.integers(0, 20)), draw(st.integers(1, 24)), draw(st.integers(1, 24))
    weight = sparse_weight((outputs, inputs, *kernel), draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])), generator)
    x = torch.randn(images, inputs, *size, generator=generator)
    form = draw(st.sampled_from(["channels_last", "channels_first", "strided"]))
    if form == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif form == "strided":
        x = torch.randn(images, inputs, size[0], 2 * size[1], generator=generator)[..., ::2]
    if draw(st.booleans()):
        weight = weight.contiguous(memory_format=torch.channels_last)
    bias = torch.randn(outputs, generator=generator) if draw(st.booleans()) else None
    return Case(x, weight, bias, {"stride": stride, "padding": padding, "dilation": dilation})


@EXAMPLES
@given(case=conv_cases(), wanted=st.sampled_from(["all", "active"]), threads=st.integers(1, 4))
def test_convolution_agrees_with_float64(instruction_set: str, case: Case, wanted: str, threads: int) -> None:
    torch.set_num_threads(threads)
    check(case, "active" if case.crashes_torch else wanted)


@pytest.mark.slow
@MANY
@given(case=conv_cases(), wanted=st.sampled_from(["all", "active"]), threads=st.integers(1, 4))
def test_a_thousand_convolutions(instruction_set: str, case: Case, wanted: str, threads: int) -> None:
    torch.set_num_threads(threads)
    check(case, "active" if case.crashes_torch else wanted)


@EXAMPLES
@given(case=conv_cases(), density=st.sampled_from([0.0, 0.3, 1.0]), threads=st.integers(1, 4))
def test_a_mask_says_where_the_gradient_goes(instruction_set: str, case: Case, density: float, threads: int) -> None:
    torch.set_num_threads(threads)
    check(case, torch.rand(case.weight.shape) < density)


# images, inputs, size, outputs, kernel, stride, padding
NETWORK_LAYERS = [
    (2, 3, 33, 16, 7, 2, 3),
    (1, 130, 7, 70, 3, 1, 1),
    (16, 64, 14, 48, 3, 2, 1),
    (17, 40, 14, 40, 1, 2, 0),
    (20, 96, 7, 200, 1, 1, 0),
    (1, 8, 56, 8, 3, 1, 1),
    (1, 512, 1, 300, 1, 1, 0),
]


@pytest.mark.parametrize("layer", NETWORK_LAYERS)
@pytest.mark.parametrize("threads", [1, 2])
def test_layers_as_in_networks(instruction_set: str, layer: tuple[int, ...], threads: int) -> None:
    torch.set_num_threads(threads)
    images, inputs, size, outputs, kernel, stride, padding = layer
    generator = torch.Generator().manual_seed(0)
    weight = sparse_weight((outputs, inputs, kernel, kernel), 0.1, generator)
    x = torch.randn(images, inputs, size, size, generator=generator).contiguous(memory_format=torch.channels_last)
    check(Case(x, weight, None, {"stride": stride, "padding": padding}), "active")


def test_the_same_result_at_every_run(instruction_set: str) -> None:
    torch.set_num_threads(3)
    generator = torch.Generator().manual_seed(0)
    weight = sparse_weight((24, 16, 3, 3), 0.3, generator)
    case = Case(torch.randn(6, 16, 20, 20, generator=generator), weight, None, {"stride": 2, "padding": 1})
    first = run_sparse(case, "active")
    for _ in range(5):
        again = run_sparse(case, "active")
        assert torch.equal(first.output, again.output)
        assert torch.equal(first.x, again.x)
        assert torch.equal(first.weight, again.weight)


def test_the_result_is_channels_last(native: None) -> None:
    found = run_sparse(Case(torch.randn(2, 4, 6, 6), torch.randn(5, 4, 3, 3), None, {"padding": 1}), "all")
    assert found.output.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_gradient_has_the_order_of_the_weight(native: None, memory_format: torch.memory_format) -> None:
    weight = torch.randn(5, 4, 3, 3).contiguous(memory_format=memory_format)
    for wanted in ("all", "active"):
        found = run_sparse(Case(torch.randn(2, 4, 6, 6), weight, None, {}), wanted)
        assert found.weight.stride() == weight.stride()


def test_input_pixels_that_no_output_sees_get_no_gradient(instruction_set: str) -> None:
    check(Case(torch.randn(2, 3, 7, 8), torch.randn(4, 3, 1, 1), None, {"stride": 3}), "active")
    check(Case(torch.randn(2, 3, 1, 1), torch.randn(4, 3, 1, 1), None, {"stride": 3, "padding": 1}), "active")
    check(Case(torch.randn(2, 3, 1, 2), torch.randn(4, 3, 3, 3), None, {"stride": 4, "padding": 2}), "active")
