"""Activations in bfloat16: as exact as torch's own dense bfloat16 or better, for linear layers and convolutions of any kind."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autosparse import kernels
from autosparse.kernels import autograd, fused_layer, library
from autosparse.kernels.geometry import Geometry
from autosparse.kernels.layer_call import LayerCall
from tests.kernels.conftest import choose
from tests.kernels.reference import Case, Results

HALF = torch.bfloat16
# Half a unit in the last place of bfloat16: what the rounding of a result alone may add.
ROUNDING = 2**-9
MARGIN = 1.1


def random_case(seed: int) -> tuple[Case, str | Tensor]:
    """A layer whose activations bfloat16 holds exactly, and where its weight gets a gradient."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def values(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    channels, outputs, density = draw.randint(1, 70), draw.randint(1, 70), draw.choice((0.02, 0.1, 0.5, 1.0))
    if draw.random() < 0.4:
        shape, lead, conv = (outputs, channels), draw.choice(((5,), (2, 37), (130,))), None
        x = values(*lead, channels)
    else:
        kernel = draw.choice(((1, 1), (3, 3), (1, 1), (2, 5), (3, 1)))
        stride, dilation = (draw.randint(1, 3), draw.randint(1, 2)), (draw.randint(1, 2), 1)
        padding = (draw.randint(0, kernel[0] // 2), draw.randint(0, kernel[1] // 2))
        shape, conv = (outputs, channels, *kernel), {"stride": stride, "padding": padding, "dilation": dilation}
        x = values(draw.randint(1, 4), channels, draw.randint(7, 20), draw.randint(7, 20))
    weight = values(*shape) * (torch.rand(shape, generator=generator) < density)
    bias = values(outputs) if draw.random() < 0.5 else None
    entries: str | Tensor = draw.choice(("all", "active", "mask"))
    if entries == "mask":
        entries = torch.rand(shape, generator=generator) < 0.3
    return Case(x.to(HALF).float(), weight, bias, conv), entries  # type: ignore[arg-type]


def gradients(case: Case, call: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None) -> Results:
    given = [None if each is None else each.detach().requires_grad_() for each in (x, weight, bias)]
    output = call(*given)
    output.backward(case.grad().to(HALF).to(output.dtype))
    of_x, of_weight, of_bias = (None if each is None else each.grad for each in given)
    return Results(output.detach(), of_x, of_weight, of_bias)  # type: ignore[arg-type]


def difference(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm())


def check(case: Case, entries: str | Tensor, margin: float = MARGIN) -> dict[str, tuple[float, float]]:
    """Against float64; torch's dense bfloat16 may be wrong by as much. Gives the squared errors of both."""
    half = case.x.to(HALF)
    found = gradients(case, lambda x, w, b: case.sparse(x, w, b, entries, (True, True, True)), half, case.weight, case.bias)
    exact = gradients(case, case.dense, *(None if each is None else each.double() for each in (case.x, case.weight, case.bias)))  # type: ignore[arg-type]
    dense = gradients(case, case.dense, *(None if each is None else each.to(HALF) for each in (half, case.weight, case.bias)))  # type: ignore[arg-type]
    receives = entries if isinstance(entries, Tensor) else (case.weight != 0) | (entries == "all")
    assert found.output.dtype is found.x.dtype is HALF
    assert found.weight.dtype is torch.float32
    assert not found.weight[~receives].any()
    errors = {}
    for name in ("output", "x", "weight", "bias"):
        ours, truth, torchs = (getattr(each, name) for each in (found, exact, dense))
        if ours is None:
            continue
        if name == "weight":
            truth, torchs = truth * receives, torchs * receives
        error, of_torch = difference(ours, truth), difference(torchs, truth)
        assert error <= max(margin * of_torch, ROUNDING * float(truth.norm())) + 1e-12, name
        errors[name] = (error**2, of_torch**2)
    return errors


@pytest.fixture(params=["float32", "bfloat16"])
def multiplied_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to multiply, where this processor has them."""
    monkeypatch.setenv(library.PAIRS_VARIABLE, request.param)
    library.load.cache_clear()
    loaded = library.load().kernels
    if loaded is None or loaded.bfloat16 is None or loaded.pairs != (request.param == "bfloat16"):
        pytest.skip(f"no kernels here that multiply in {request.param}")
    return str(request.param)


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_random_layers(multiplied_in: str, first: int) -> None:
    for seed in range(first, first + 40):
        case, entries = random_case(seed)
        if not case.crashes_torch:
            check(case, entries)


@pytest.mark.parametrize("first", [300])
def test_instruction_sets(instruction_set: str, first: int) -> None:
    for seed in range(first, first + 20):
        case, entries = random_case(seed)
        if not case.crashes_torch:
            check(case, entries)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 4000, 250))
def test_thousands_of_random_layers(multiplied_in: str, first: int) -> None:
    """Few numbers may be unlucky in one layer, so all layers together have the narrow margin."""
    ours: dict[str, float] = defaultdict(float)
    torchs: dict[str, float] = defaultdict(float)
    for seed in range(first, first + 250):
        case, entries = random_case(seed)
        if case.crashes_torch:
            continue
        for name, (error, of_torch) in check(case, entries, margin=2.0).items():
            ours[name] += error
            torchs[name] += of_torch
    for name in ours:
        assert ours[name] <= 1.05**2 * torchs[name], name


@pytest.mark.parametrize("which", ["portable", "off"])
def test_torch_computes_where_no_kernel_does(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(which, monkeypatch)
    assert not library.available(HALF)
    check(*random_case(3))


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("sparse", [(True, True, True), (True, False, True), (False, True, False)])
def test_the_operators_are_well_formed(native: None, conv: bool, sparse: tuple[bool, ...]) -> None:
    x = torch.randn(2, 5, 6, 7).to(HALF) if conv else torch.randn(4, 5).to(HALF)
    weight = torch.randn(3, 5, 3, 3) if conv else torch.randn(3, 5)
    weight = (weight * (torch.rand(weight.shape) < 0.4)).requires_grad_()
    numbers = [1, 1, 1, 1, 1, 1, 1] if conv else []
    arguments = (x.requires_grad_(), weight, torch.randn(3, requires_grad=True), numbers, "active", None, list(sparse))
    torch.library.opcheck(
        autograd.sparse_layer, arguments, test_utils=("test_schema", "test_faketensor", "test_autograd_registration")
    )


def test_values_that_are_not_finite_stay_so(multiplied_in: str) -> None:
    x = torch.tensor([[1.0, float("nan")], [float("inf"), 2.0], [3e38, 3.39e38]]).to(HALF)
    found = kernels.sparse_linear(x, torch.eye(2), None)
    assert found[0, 1].isnan()
    assert not found[1, 0].isfinite()
    assert torch.equal(found[2], x[2])


def norm_step(x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, sparse: tuple[bool, ...]) -> Tensor:
    geometry = Geometry((1, 1), (weight.shape[2] // 2,) * 2, (1, 1), x.shape[1] // weight.shape[1])
    call = LayerCall(weight, None, geometry, "all" if geometry.groups > 1 else "active", None, sparse)
    norm = fused_layer.Norm(gamma, beta, torch.zeros(len(weight)), 1e-5)
    raw, folded, _ = autograd.conv_norm(x, None, False, call, norm)
    return autograd.join(raw, folded, None, None, relu=False)


@pytest.mark.parametrize("shape", [(40, 24, 1, 1), (40, 24, 3, 3), (24, 1, 3, 3)])
@pytest.mark.parametrize("sparse", [(True, True, True), (False, False, False)])
def test_a_fused_batch_norm(multiplied_in: str, shape: tuple[int, ...], sparse: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    x, gamma, beta = torch.randn(4, 24, 9, 9).to(HALF), torch.rand(shape[0]) + 0.5, torch.randn(shape[0])
    weight = torch.randn(shape) * (torch.rand(shape) < 0.3) if shape[1] > 1 else torch.randn(shape)
    given = x, weight, gamma, beta
    grad = torch.randn(4, shape[0], 9, 9).to(HALF)
    with torch.autocast("cpu", HALF):
        dense = results(torchs_step, [each.clone() for each in given], grad)
    exact = results(torchs_step, [each.double() for each in given], grad.double())
    found = results(lambda *tensors: norm_step(*tensors, sparse), [each.clone() for each in given], grad)
    for mine, torchs, true in zip(found, dense, exact, strict=True):
        receives = weight != 0 if true.shape == weight.shape else torch.ones(1)
        allowed = MARGIN * difference(torchs * receives, true * receives) + ROUNDING * float(true.norm())
        assert difference(mine, true * receives) <= allowed


def torchs_step(x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    raw = F.conv2d(x, weight, None, 1, weight.shape[2] // 2, 1, x.shape[1] // weight.shape[1])
    return F.batch_norm(raw, None, None, gamma, beta, training=True)


def results(call: Callable[..., Tensor], tensors: list[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [each.requires_grad_() for each in tensors]
    output = call(*leaves)
    output.backward(grad)
    return [output.detach(), *(each.grad for each in leaves if each.grad is not None)]
