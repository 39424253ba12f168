"""Fused layers on tensors with images last against the same layers on tensors with channels last."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from autosparse.kernels import library, normalise, pixels
from autosparse.kernels.autograd import conv_norm, in_order, join
from autosparse.kernels.fused_layer import Norm
from autosparse.kernels.geometry import Geometry
from autosparse.kernels.layer_call import LayerCall
from autosparse.kernels.memory import is_images_last

HALF = torch.bfloat16
PRECISIONS = [torch.float32, HALF]
# Of float32, two orders of adding up; of bfloat16, results that were rounded once.
ALLOWED = {torch.float32: 3e-5, HALF: 1.5e-2}


class Case(NamedTuple):
    """Two convolutions with their batch norms, the second on a normalised value or, joined with a tensor, on that sum."""

    x: Tensor
    first: Tensor
    second: Tensor
    geometry: Geometry
    relu: bool
    joined: bool
    entries: str
    sparse: tuple[bool, bool, bool]
    threads: int


def random_case(seed: int, dtype: torch.dtype) -> Case:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    images = library.lanes() * choose.choice([1, 1, 2, 3])
    inputs, middle, outputs = choose.randint(1, 40), choose.randint(1, 70), choose.randint(1, 70)
    kernel = choose.choice([(1, 1), (3, 3), (choose.randint(1, 3), choose.randint(1, 3))])
    stride, dilation = ((choose.choice((1, 1, 2)), choose.choice((1, 1, 2))) for _ in range(2))
    padding = choose.randint(0, kernel[0]), choose.randint(0, kernel[1])
    size = tuple(max(choose.randint(1, 17), d * (k - 1) + 1) for k, d in zip(kernel, dilation, strict=True))
    density = choose.choice([0.05, 0.3, 1.0])
    shapes = (middle, inputs, 1, 1), (outputs, middle, *kernel)
    first, second = (torch.randn(shape) * (torch.rand(shape) < density) for shape in shapes)
    sparse = choose.choice([(True, True, True)] * 3 + [tuple(choose.random() < 0.5 for _ in range(3))])
    return Case(
        torch.randn(images, inputs, *size).to(dtype), first, second, Geometry(stride, padding, dilation), choose.random() < 0.5,
        choose.random() < 0.5, choose.choice(["active", "active", "all"]), sparse, choose.choice([1, 2]),
    )  # fmt: skip


def results(case: Case, images_last: bool) -> dict[str, Tensor]:
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    x, first, second = (each.clone().requires_grad_() for each in (case.x, case.first, case.second))
    learned = [torch.rand(len(weight)).add(0.5).requires_grad_() for weight in (first, second) for _ in range(2)]
    pointwise = Geometry((1, 1), (0, 0), (1, 1))

    def arguments(weight: Tensor, geometry: Geometry, place: int) -> tuple[LayerCall, Norm]:
        call = LayerCall(weight, None, geometry, case.entries, None, case.sparse)
        return call, Norm(learned[place], learned[place + 1], torch.zeros(len(weight)), 1e-3)

    raw, folded, _ = conv_norm(in_order(x, images_last), None, False, *arguments(first, pointwise, 0))
    assert is_images_last(raw) == images_last
    if case.joined:
        other = torch.randn(raw.shape).to(raw.dtype)
        raw, folded, _ = conv_norm(join(raw, folded, other, None, case.relu), None, False, *arguments(second, case.geometry, 2))
    else:
        raw, folded, _ = conv_norm(raw, folded, case.relu, *arguments(second, case.geometry, 2))
    assert is_images_last(raw) == images_last
    result = join(raw, folded, None, None, False)
    result.backward(torch.randn(result.shape).to(result.dtype))
    names = "x", "first", "second", "gamma1", "beta1", "gamma2", "beta2"
    found = {name: each.grad for name, each in zip(names, (x, first, second, *learned), strict=True)}
    return {"result": result.detach()} | found  # type: ignore[dict-item]


def check(seed: int, dtype: torch.dtype) -> None:
    case = random_case(seed, dtype)
    by_channels, by_images = results(case, False), results(case, True)
    for name, expected in by_channels.items():
        expected = expected.float()
        distance = float((by_images[name].float() - expected).norm())
        # the second batch norm takes what the first one adds away: what is left of many terms is their rounding
        least = (case.x.numel() / case.x.shape[1]) ** 0.5 if name == "beta1" else 1
        assert distance <= ALLOWED[dtype] * (float(expected.norm()) + least), (seed, name)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_order_of_tensors_does_not_change_results(instruction_set: str, dtype: torch.dtype) -> None:
    if not library.available(dtype):
        pytest.skip("no kernels for this type")
    for seed in range(12):
        check(seed, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("first", range(100, 500, 100))
def test_hundreds_of_random_layers(native: None, dtype: torch.dtype, first: int) -> None:
    if not library.available(dtype):
        pytest.skip("no kernels for this type")
    for seed in range(first, first + 100):
        check(seed, dtype)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 5, 3, 7), (2, 33, 4, 1), (1, 16, 8, 8)])
def test_turning_moves_every_number_and_back(instruction_set: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not library.available(dtype):
        pytest.skip("no kernels for this type")
    x = torch.randn(shape[0] * library.lanes(), *shape[1:]).to(dtype)
    turned = normalise.in_order(x, images_last=True)
    assert is_images_last(turned)
    assert torch.equal(turned, x)
    assert torch.equal(normalise.in_order(turned, images_last=False), x)


def test_results_written_past_the_caches_are_the_same(instruction_set: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(3, torch.float32)
    cached = results(case, True)
    monkeypatch.setattr(pixels, "STREAMED_IMAGES_BYTES", 0)
    assert pixels.streams_past_caches(normalise.in_order(torch.empty_like(case.x), images_last=True))
    streamed = results(case, True)
    assert all(torch.equal(cached[name], streamed[name]) for name in cached)


def test_gradients_come_back_in_the_order_of_their_tensor(native: None) -> None:
    x = torch.randn(library.lanes(), 3, 4, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    in_order(x, images_last=True).mul(2).sum().backward()
    assert x.grad is not None
    assert x.grad.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x.grad, torch.full_like(x, 2))
