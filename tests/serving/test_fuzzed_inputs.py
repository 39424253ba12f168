"""Inputs of any shape, dtype, stride and device: what the plain model gives, or an error of the same type."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autosparse.kernels import library, memory
from autosparse.serving import Deployed, deploy, program

from ..kernels.conftest import Forgetful, memory_of_exact_size
from .test_inputs import EXAMPLES, outcome

pytestmark = [
    pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("native_wins", "_exact_memory"),
]
COUNT = int(os.environ.get("FUZZ_EXAMPLES", "12"))
SIZES = (0, 1, 2, 3, 5, 7, 8, 16, 20, 33)
DTYPES = (torch.float32,) * 6 + (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
LAYOUTS = (
    "plain",
    "plain",
    "transposed",
    "strided",
    "expanded",
    "channels_last",
    "offset",
    "negated",
    "sparse",
    "meta",
    "grad",
)


@pytest.fixture
def _exact_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under AddressSanitizer every buffer has an end that it watches."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        monkeypatch.setattr(memory, "_local", Forgetful())
        monkeypatch.setattr(memory, "_new_pages", memory_of_exact_size)
        monkeypatch.setattr(program, "arena", torch.zeros)


@st.composite
def shapes(draw: st.DrawFn, right: tuple[int, ...]) -> tuple[int, ...]:
    """Nearly right ones, most of the time."""
    kind = draw(st.sampled_from(["right", "one side", "one side", "batch", "rank", "any"]))
    sizes = st.sampled_from(SIZES)
    if kind == "one side":
        side = draw(st.integers(0, len(right) - 1))
        return (*right[:side], draw(sizes), *right[side + 1 :])
    if kind == "batch":
        return (draw(sizes), *right[1:])
    if kind == "rank":
        return draw(st.sampled_from([right[1:], (1, *right), (*right, 1), right[:1]]))
    return right if kind == "right" else tuple(draw(st.lists(sizes, max_size=5)))


@st.composite
def tensors(draw: st.DrawFn, right: tuple[int, ...]) -> Tensor:
    shape, dtype, layout = draw(shapes(right)), draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS))
    return laid_out(torch.randn(shape).to(dtype), layout)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another place or order of memory; unchanged where the layout does not go with the shape."""
    if layout == "transposed" and x.ndim > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "strided" and x.ndim:
        return torch.stack([x, x], -1)[..., 0]
    if layout == "expanded" and x.numel():
        return x[:1].expand_as(x) if x.ndim else x
    if layout == "channels_last" and x.ndim == 4:
        return x.to(memory_format=torch.channels_last)
    if layout == "offset" and x.numel():
        return torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].view(x.shape)
    if layout == "negated" and x.dtype is not torch.bool:
        return torch._neg_view(x)
    if layout == "sparse" and x.ndim:
        return x.to_sparse()
    if layout == "grad" and x.is_floating_point():
        return x.requires_grad_()
    return x.to("meta") if layout == "meta" else x


def same(result: Any, expected: Any) -> bool:
    """Close values of the same shape, or errors of the same type."""
    if not isinstance(expected, Tensor) or not isinstance(result, Tensor):
        return result is expected
    if result.device.type == "meta" or expected.device.type == "meta":
        return result.device == expected.device and result.shape == expected.shape
    return result.shape == expected.shape and torch.allclose(result, expected, rtol=1e-3, atol=1e-4, equal_nan=True)


def deployed_net(kind: type[nn.Module]) -> tuple[nn.Module, Deployed]:
    torch.manual_seed(0)
    model = kind().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[torch.rand_like(parameter) < 0.5] = 0
    return model, deploy(model, EXAMPLES[kind], threads=1)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_any_input(kind: type[nn.Module]) -> None:
    model, deployed = deployed_net(kind)
    first, second = (tuple(example.shape) for example in EXAMPLES[kind])  # type: ignore[attr-defined]

    @seed(int(os.environ.get("CHAOS_SEED", "0")))
    @settings(max_examples=COUNT, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(tensors(first), tensors(second) | st.just(torch.randn(second)))
    def check(x: Tensor, other: Tensor) -> None:
        expected, result = outcome(model, (x, other)), outcome(deployed, (x, other))
        assert same(result, expected), (describe(x), describe(other), expected, result)

    check()


def describe(x: Tensor) -> str:
    return f"{tuple(x.shape)} {x.dtype} {x.layout} {x.device} {x.stride() if x.layout is torch.strided else ''}"
