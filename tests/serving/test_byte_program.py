"""The eight-bit engine against NumPy, integer for integer: every kind of step, every instruction set."""

from __future__ import annotations

import ctypes
import random
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from autosparse.kernels import library
from autosparse.kernels.byte_table import BLOCKS, CHUNK_PIXELS, ByteKernels, pack_quads
from autosparse.serving.layout import NotOnGridError
from autosparse.serving.quantized.choice import tiles
from autosparse.serving.quantized.emulation import EmulatedRegion
from autosparse.serving.quantized.operations import ByteVariant
from autosparse.serving.quantized.program import ByteProgram
from autosparse.serving.quantized.steps import QuantizedRegion, fuse_bytes, in_bfloat16, quantize, values_to_observe
from autosparse.serving.steps import ConcatStep, ConvolutionStep, MeanStep, PoolStep, Region, Step, SumStep

from .byte_reference import run
from .test_program import conv, in_torch, network

BYTE_SETS = tuple(name for names in library.BYTE_SETS.values() for name in names)


@cache
def kernels_of(name: str) -> ByteKernels | None:
    return library.byte_kernels(ctypes.CDLL(str(library.library_path())), (name,)) if library.available() else None


@pytest.fixture(params=BYTE_SETS)
def kernels(request: pytest.FixtureRequest) -> ByteKernels:
    found = kernels_of(request.param)
    if found is None:
        pytest.skip(f"no eight-bit kernels for {request.param} here")
    return found


def ranges_of(region: Region, inputs: list[Tensor]) -> dict[int, tuple[float, float]]:
    """Of every value, from what torch computes."""
    values = tuple(sorted(values_to_observe(region)))
    inside = [value for value in values if value not in region.inputs]
    found = dict(zip(region.inputs, inputs, strict=True))
    found |= dict(zip(inside, in_torch(Region(region.steps, region.inputs, tuple(inside)), inputs), strict=True))
    return {value: (float(found[value].min()), float(found[value].max())) for value in values}


def quantized(region: Region, inputs: list[Tensor], every_value: bool = True) -> QuantizedRegion:
    fused = fuse_bytes(region)
    if every_value:
        fused = Region(fused.steps, fused.inputs, tuple(step.output for step in fused.steps))
    return quantize(fused, ranges_of(fused, inputs))


def variants(region: Region, kernels: ByteKernels, choose: random.Random) -> dict[int, ByteVariant]:
    picked = {}
    for index, step in enumerate(region.steps):
        if isinstance(step, ConvolutionStep):
            rows = step.out_channels // step.groups
            block = choose.choice([block for block in BLOCKS if step.groups == 1 or rows % block == 0])
            picked[index] = ByteVariant(block, choose.randint(1, kernels.max_chunks(block)))
    return picked


def assert_same(found: list[Tensor], expected: list[np.ndarray], region: QuantizedRegion) -> None:
    """The same integers; means, which leave as floats, but for rounding."""
    means = {step.output for step in region.region.steps if isinstance(step, MeanStep)}
    for value, a, b in zip(region.region.outputs, found, expected, strict=True):
        assert tuple(a.shape) == b.shape
        if value in means:
            assert np.allclose(a.numpy(), b, rtol=1e-5, atol=1e-5)
        else:
            assert np.array_equal(a.numpy(), b), f"value {value}: {(a.numpy() != b).mean():.2%} differ"


@pytest.mark.parametrize(("images", "group", "size"), [(1, 1, (61, 47)), (3, 2, (64, 48)), (4, 4, (40, 40))])
def test_a_network_of_all_steps(kernels: ByteKernels, images: int, group: int, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(images, 3, *size)
    region = quantized(network(), [x])
    program = ByteProgram(region, [(3, *size)], kernels, 1, group, 1, variants(region.region, kernels, random.Random(1)))
    expected = run(region, [x])
    for _ in range(2):  # the second time every plane has been used before
        assert_same(program([x]), expected, region)


def random_region(seed: int) -> tuple[Region, list[Tensor], random.Random]:
    """A convolution of any kind and what may surround it."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    groups = choose.choice([1, 1, 1, 1, 2, 3, 8])
    depthwise = choose.random() < 0.2
    inputs = groups * choose.randint(1, 9)
    outputs = inputs if depthwise else groups * choose.randint(1, 11)
    kernel, stride, dilation = (
        choose.choice([1, 1, 2, 3, 3, 3, 5, 7]),
        choose.choice([1, 1, 1, 2, 2, 3]),
        choose.choice([1, 1, 1, 2]),
    )
    size = choose.randint(1, 20), choose.randint(1, 40)
    images = choose.randint(1, 4)
    padding = choose.randint(0, kernel // 2 * dilation)
    density = choose.choice([0.0, 0.05, 0.2, 0.5, 1.0])
    steps: list[Step] = [
        conv(0, 1, inputs, outputs, kernel, stride, padding, dilation, inputs if depthwise else groups, density)
    ]
    last = 1
    if choose.random() < 0.5:
        steps.append(SumStep("bounds", (last,), 2, low=choose.choice([0.0, -1.0]), high=choose.choice([float("inf"), 1.5])))
        last = 2
    kind = choose.choice(["none", "add", "pool", "mean", "join", "mean of all"])
    if kind == "add":
        again = conv(0, 3, inputs, outputs, kernel, stride, padding, dilation, 1, density)
        steps += [again, SumStep("add", (3, last), 4, low=choose.choice([0.0, -float("inf")]))]
    elif kind in ("pool", "mean"):
        steps.append(PoolStep(kind, (last,), 4, kind == "pool", (3, 3), (choose.choice([1, 2]),) * 2, (1, 1)))
    elif kind == "join":
        steps += [SumStep("bounds", (last,), 3, low=0.0), ConcatStep("join", (last, 3), 4)]
    elif kind == "mean of all":
        steps.append(MeanStep("mean", (last,), 4))
    outside = tuple(step.output for step in steps if choose.random() < 0.3 or step is steps[-1])
    x = torch.randn(images, inputs, *size) if choose.random() < 0.7 else torch.rand(images, inputs, *size)
    return Region(tuple(steps), (0,), outside), [x], choose


def check_random_region(seed: int) -> bool:
    """Whether it can be laid out; on every instruction set, each with tiles and blocks of its own."""
    region, inputs, choose = random_region(seed)
    threads, group = choose.choice([1, 1, 2]), choose.choice([1, 2, 4])
    workers = threads if -(-len(inputs[0]) // group) >= threads else 1
    shape = [tuple(inputs[0].shape[1:])]
    try:
        form = quantized(region, inputs, every_value=choose.random() < 0.5)
        programs = [
            ByteProgram(form, shape, kernels, threads, group, workers, variants(form.region, kernels, choose))
            for kernels in map(kernels_of, BYTE_SETS)
            if kernels is not None
        ]
    except (NotOnGridError, RuntimeError):  # a window larger than its picture: torch refuses, too
        return False
    expected = run(form, inputs)
    for program in programs:
        assert_same(program(inputs), expected, form)
    return bool(programs)


@pytest.mark.parametrize("part", range(4))
def test_random_shapes(part: int) -> None:
    if kernels_of("portable") is None:
        pytest.skip(f"no kernels: {library.why_not()}")
    assert sum(check_random_region(4 * seed + part) for seed in range(75)) > 40


@pytest.mark.slow
def test_thousands_of_random_shapes() -> None:
    assert sum(check_random_region(seed) for seed in range(1000, 4000)) > 1800


def test_quads_by_hand() -> None:
    weight = torch.tensor([[0, 5, 0, -7, 1, 2, 3], [0, 0, 0, 0, 0, 0, 0], [9, 0, 0, 0, 0, 0, -9]], dtype=torch.int8)
    starts, quads = pack_quads(weight, torch.arange(7)[None] * 100, 1)
    assert starts.tolist() == [0, 2, 2, 3]
    assert quads[:, :4].tolist() == [[100, 300, 400, 500], [600] * 4, [0, 600, 600, 600]]
    assert quads[:, 4:].contiguous().view(torch.int8).tolist() == [[5, -7, 1, 2], [3, 0, 0, 0], [9, -9, 0, 0]]


def test_quads_of_two_rows_by_hand() -> None:
    weight = torch.tensor([[0, 5, 0], [6, 0, 0], [0, 0, 7]], dtype=torch.int8)
    starts, quads = pack_quads(weight, torch.tensor([[10, 20, 30]]), 2)
    assert starts.tolist() == [0, 1, 2]
    assert quads[:, :4].tolist() == [[10, 20, 20, 20], [30, 30, 30, 30]]
    assert quads[0, 4:].contiguous().view(torch.int8).tolist() == [0, 5, 0, 0, 6, 0, 0, 0]
    # the second block backwards
    assert quads[1, 4:].contiguous().view(torch.int8).tolist() == [0, 0, 0, 7, 0, 0, 0, 0]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("chunks", [1, 2, 7, 26, 100])
def test_tiles_begin_with_a_cache_line(chunks: int, most: int) -> None:
    for tile in tiles(chunks, most):
        assert 1 <= tile <= most
        assert tile * CHUNK_PIXELS % 64 == 0 or tile == chunks or most == 1


def test_the_result_is_near_the_real_one(kernels: ByteKernels) -> None:
    torch.manual_seed(3)
    x = torch.randn(2, 3, 48, 48)
    region = network()
    form = quantized(region, [x], every_value=False)
    program = ByteProgram(form, [(3, 48, 48)], kernels, 1, 1, 1, {})
    for found, expected in zip(program([x]), in_torch(region, [x]), strict=True):
        assert float((found - expected).norm()) < 0.06 * float(expected.norm())


def test_what_is_not_finite_becomes_a_bound(kernels: ByteKernels) -> None:
    x = torch.zeros(1, 1, 1, 4)
    region = quantized(Region((conv(0, 1, 1, 1, 1, density=1.0),), (0,), (1,)), [torch.tensor([[[[-1.0, 0.0, 0.5, 1.0]]]])])
    program = ByteProgram(region, [(1, 1, 4)], kernels, 1, 1, 1, {})
    x[0, 0, 0] = torch.tensor([float("inf"), float("-inf"), float("nan"), 1e30])
    assert bool(torch.isfinite(program([x])[0]).all())


# ---- bfloat16 -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def halves() -> ByteKernels:
    engine = library.engine()
    if engine is None or engine.halves is None:
        pytest.skip("no bfloat16 kernels here")
    return engine.halves


def check_in_bfloat16(kernels: ByteKernels, region: Region, inputs: list[Tensor], choose: random.Random) -> bool:
    """Against torch, which rounds to bfloat16 after every step, too: half a unit more or less may change the rounding."""
    group = choose.choice([1, 2, 4])
    form = in_bfloat16(fuse_bytes(region))
    try:
        expected = EmulatedRegion(form)(*inputs)
        shape = [tuple(inputs[0].shape[1:])]
        program = ByteProgram(form, shape, kernels, 1, group, 1, variants(form.region, kernels, choose))
    except (NotOnGridError, RuntimeError):
        return False
    for found, wanted in zip(program(inputs), expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert found.shape == wanted.shape
        assert float((found - wanted).abs().max()) <= 0.02 * float(wanted.abs().max())
        assert float((found - wanted).norm()) <= 0.004 * float(wanted.norm())
    return True


def test_a_network_in_bfloat16(halves: ByteKernels) -> None:
    torch.manual_seed(0)
    for images, size in ((1, (61, 47)), (3, (40, 64))):
        assert check_in_bfloat16(halves, network(), [torch.randn(images, 3, *size)], random.Random(2))


def test_random_shapes_in_bfloat16(halves: ByteKernels) -> None:
    regions = map(random_region, range(200))
    assert sum(check_in_bfloat16(halves, region, inputs, choose) for region, inputs, choose in regions) > 110
