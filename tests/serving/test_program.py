"""The native engine against torch: every kind of step, every variant of a convolution, every instruction set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autosparse.kernels import library
from autosparse.serving.choice import candidates, choose, first_guess
from autosparse.serving.layout import NotOnGridError
from autosparse.serving.program import Program
from autosparse.serving.steps import ConcatStep, ConvolutionStep, MeanStep, PoolStep, Region, Step, SumStep, fuse

CLOSE = 3e-6


@pytest.fixture(params=library.INSTRUCTION_SETS)
def engine(request: pytest.FixtureRequest, choose_kernels: Callable[[str], None]) -> library.Engine:
    choose_kernels(request.param)
    return any_engine()


def any_engine() -> library.Engine:
    engine = library.engine()
    if engine is None:
        pytest.skip(f"no engine: {library.why_not()}")
    return engine


def conv(
    source: int,
    output: int,
    inputs: int,
    outputs: int,
    kernel: int = 3,
    stride: int = 1,
    padding: int | None = None,
    dilation: int = 1,
    groups: int = 1,
    density: float = 0.2,
) -> ConvolutionStep:
    weight = torch.randn(outputs, inputs // groups, kernel, kernel) / (inputs // groups * kernel**2) ** 0.5
    weight *= torch.rand_like(weight) < density
    around = kernel // 2 * dilation if padding is None else padding
    square = ((stride, stride), (around, around), (dilation, dilation))
    return ConvolutionStep(f"conv{output}", (source,), output, weight, torch.randn(outputs), *square, groups)


def in_torch(region: Region, inputs: list[Tensor]) -> list[Tensor]:
    """The region step by step."""
    values = dict(zip(region.inputs, inputs, strict=True))
    for step in region.steps:
        first = values[step.inputs[0]]
        if isinstance(step, ConvolutionStep):
            result = _convolve(step, first)
            result = result + values[step.inputs[1]] if len(step.inputs) > 1 else result
        elif isinstance(step, PoolStep):
            pool = F.max_pool2d if step.largest else F.avg_pool2d
            result = pool(first, step.kernel, step.stride, step.padding)
        elif isinstance(step, SumStep):
            result = first + values[step.inputs[1]] if len(step.inputs) > 1 else first
        elif isinstance(step, ConcatStep):
            result = torch.cat([values[each] for each in step.inputs], 1)
        else:
            result = first.mean((2, 3), keepdim=True)
        values[step.output] = result.clamp(step.low, step.high)
    return [values[each] for each in region.outputs]


def _convolve(step: ConvolutionStep, x: Tensor) -> Tensor:
    if step.before is not None:
        x = _convolve(step.before, x).clamp(step.before.low, step.before.high)
    return F.conv2d(x, step.weight, step.bias, step.stride, step.padding, step.dilation, step.groups)


def assert_close(result: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(result, expected, strict=True):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= CLOSE * float(b.abs().max())


def network() -> Region:
    """A stem, a fused block, strided branches, groups, dilation, windows without padding, pools, a join and a mean."""
    steps: list[Step] = [
        conv(0, 1, 3, 20, 7, 2, density=1.0),
        SumStep("relu", (1,), 2, low=0.0),
        PoolStep("pool", (2,), 3, True, (3, 3), (2, 2), (1, 1)),
        conv(3, 4, 20, 24, 1),
        SumStep("relu6", (4,), 5, low=0.0, high=6.0),
        conv(5, 6, 24, 24, 3, groups=24, density=1.0),
        SumStep("relu", (6,), 7, low=0.0),
        conv(7, 8, 24, 20, 1),
        SumStep("add", (8, 3), 9),
        SumStep("relu", (9,), 10, low=0.0),
        conv(10, 11, 20, 32, 3, 2),
        conv(10, 12, 20, 32, 1, 2),
        SumStep("add", (11, 12), 13, low=0.0),
        conv(13, 14, 32, 33, dilation=2),
        conv(14, 15, 33, 33, 3, padding=0, groups=3),
        PoolStep("mean", (15,), 16, False, (2, 2), (1, 1), (0, 0)),
        conv(14, 17, 33, 33, 3, 2, groups=33, density=1.0),
        ConcatStep("join", (17, 17), 18),
        MeanStep("mean", (18,), 19),
    ]
    return Region(tuple(steps), (0,), (10, 16, 19))


@pytest.mark.parametrize(("images", "group", "size"), [(1, 1, (61, 47)), (3, 2, (64, 48)), (4, 4, (40, 40))])
def test_a_network_of_all_steps(engine: library.Engine, images: int, group: int, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    region = network()
    x = torch.randn(images, 3, *size)
    expected = in_torch(region, [x])
    for form in (region, fuse(region)):
        program = Program(form, [(3, *size)], engine, 1, group, 1, first_guess(form))
        for _ in range(2):  # the second time every plane has been used before
            assert_close(program([x]), expected)


def test_fusing_leaves_the_products_alone() -> None:
    torch.manual_seed(0)
    fused = fuse(network()).steps
    assert [type(step).__name__ for step in fused] == [
        "ConvolutionStep", "PoolStep", "ConvolutionStep", "ConvolutionStep", "ConvolutionStep", "ConvolutionStep",
        "ConvolutionStep", "ConvolutionStep", "PoolStep", "ConvolutionStep", "ConcatStep", "MeanStep",
    ]  # fmt: skip
    block = fused[3]
    assert isinstance(block, ConvolutionStep)
    assert block.before is not None  # the depthwise convolution
    assert block.inputs == (5, 3)  # the sum
    assert (block.low, block.output) == (0.0, 10)  # the ReLU


def test_every_variant(engine: library.Engine) -> None:
    torch.manual_seed(1)
    region = fuse(network())
    x = torch.randn(2, 3, 52, 52)
    expected = in_torch(region, [x])
    program = Program(region, [(3, 52, 52)], engine, 1, 2, 1, first_guess(region))
    program([x])
    seen = set()
    for index, step in enumerate(region.steps):
        if isinstance(step, ConvolutionStep) and not step.depthwise:
            for variant in candidates(step, program.grids[program.sizes[step.output].grid], engine):
                program.use(index, program.prepare(index, variant))
                assert_close(program([x]), expected)
                seen.add((variant.sparse, variant.aligned))
    assert seen == {(True, False), (True, True), (False, False)}


@pytest.mark.parametrize(("images", "group"), [(1, 1), (5, 1), (4, 2)])
def test_two_threads_share_a_group_or_take_their_own(images: int, group: int) -> None:
    torch.manual_seed(2)
    region = fuse(network())
    x = torch.randn(images, 3, 40, 40)
    for workers in (1, 2):
        program = Program(region, [(3, 40, 40)], any_engine(), 2, group, workers, first_guess(region))
        assert_close(program([x]), in_torch(region, [x]))


def test_choosing_keeps_the_result() -> None:
    torch.manual_seed(3)
    region = fuse(network())
    x = torch.randn(1, 3, 32, 32)
    program = Program(region, [(3, 32, 32)], any_engine(), 1, 1, 1, first_guess(region))
    chosen = choose(program, [x])
    assert set(chosen) == set(first_guess(region))
    assert_close(program([x]), in_torch(region, [x]))


@settings(deadline=None, max_examples=60)
@given(
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 6]),
    rows=st.integers(5, 40),
    cols=st.integers(5, 40),
    images=st.integers(1, 5),
    group=st.integers(1, 3),
)
def test_any_convolution(
    kernel: int, stride: int, padding: int, dilation: int, groups: int, rows: int, cols: int, images: int, group: int
) -> None:
    if min(rows, cols) + 2 * padding < dilation * (kernel - 1) + 1:
        return
    torch.manual_seed(0)
    step = conv(0, 1, 6, 12 if groups < 6 else 6, kernel, stride, padding, dilation, groups, 0.5)
    region = Region((step,), (0,), (1,))
    x = torch.randn(images, 6, rows, cols)
    try:
        program = Program(region, [(6, rows, cols)], any_engine(), 1, group, 1, first_guess(region))
    except NotOnGridError:
        # more padding than a window that keeps the size would have: torch's part
        assert F.conv2d(x, step.weight, None, stride, padding, dilation, groups).shape[2] > -(-rows // stride) or (
            F.conv2d(x, step.weight, None, stride, padding, dilation, groups).shape[3] > -(-cols // stride)
        )
        return
    assert_close(program([x]), in_torch(region, [x]))


def test_not_a_number_and_infinity_pass_as_in_torch(engine: library.Engine) -> None:
    step = conv(0, 1, 4, 6, 1, density=1.0)
    region = fuse(Region((step, SumStep("relu", (1,), 2, low=0.0)), (0,), (2,)))
    x = torch.randn(1, 4, 5, 5)
    x[0, 1, 2, 2] = float("nan")
    x[0, 1, 3, 3] = float("inf")
    program = Program(region, [(4, 5, 5)], engine, 1, 1, 1, first_guess(region))
    (result,) = program([x])
    expected = F.relu(F.conv2d(x, step.weight, step.bias))
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.allclose(result, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
