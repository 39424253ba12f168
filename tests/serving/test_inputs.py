"""Deployed models given inputs unlike the example: what the plain model gives, or an error of the same type."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.kernels import library
from autosparse.serving import Deployed, deploy
from autosparse.serving.native import NativeRegion

pytestmark = [
    pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}"),
    pytest.mark.filterwarnings("ignore:deploy"),
    pytest.mark.usefixtures("native_wins"),
]
Inputs = tuple[object, ...]


class Convolutional(nn.Module):
    """A depthwise pair and a strided layer; a second input is added inside the region."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.down = nn.Conv2d(8, 6, 3, 2, 1)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y: Tensor = self.down(F.relu(self.pointwise(self.depthwise(self.stem(x))) + other))
        return y


class Towers(nn.Module):
    """Two inputs that meet only after the convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.left(x).mean((-2, -1)) + self.right(other).mean((-2, -1))


class Linear(nn.Module):
    """A sum and a ReLU after the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y: Tensor = self.second(F.relu(self.first(x) + other))
        return y


class LinearInPlace(Linear):
    """The sum cannot grow beyond the first layer's result."""

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        z: Tensor = self.second(F.relu(self.first(x).add_(other)))
        return z


class Mixed(nn.Module):
    """Folded norms behind a convolution and behind a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.linear, self.norm1d, self.head = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y = F.relu(self.norm(self.conv(x)) + other)
        z: Tensor = self.head(F.relu(self.norm1d(self.linear(y.mean((2, 3))))))
        return z


class Branching(nn.Module):
    """torch.fx cannot capture it: its layers are replaced one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y = self.body(x) + other
        if y.isnan().any():
            raise ValueError("not a number")
        z: Tensor = self.head(y.mean((2, 3)))
        return z


def strided(x: Tensor) -> Tensor:
    """The same numbers in another order in memory."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


IMAGES: Inputs = (torch.randn(2, 3, 8, 8), torch.randn(2, 8, 8, 8))
EXAMPLES: dict[type[nn.Module], Inputs] = {
    Convolutional: IMAGES,
    Towers: (torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)),
    Linear: (torch.randn(2, 20), torch.randn(2, 16)),
    LinearInPlace: (torch.randn(2, 20), torch.randn(2, 16)),
    Mixed: IMAGES,
    Branching: IMAGES,
}
CHANGES: dict[str, Callable[[Tensor, Tensor], Inputs]] = {
    "more channels": lambda x, other: (torch.cat([x, x], 1), other),
    "one channel": lambda x, other: (x[:, :1], other),
    "channels of the second": lambda x, other: (x, other[:, :1]),
    "no batch": lambda x, other: (x[0], other[0]),
    "one dimension more": lambda x, other: (x[None], other[None]),
    "rank of the first": lambda x, other: (x[0], other),
    "rank of the second": lambda x, other: (x, other[0]),
    "a number": lambda x, other: (torch.tensor(1.0), other),
    "double": lambda x, other: (x.double(), other.double()),
    "double second": lambda x, other: (x, other.double()),
    "whole numbers second": lambda x, other: (x, other.long()),
    "half": lambda x, other: (x.half(), other.half()),
    "sparse": lambda x, other: (x.to_sparse(), other),
    "another device": lambda x, other: (x.to("meta"), other),
    "no tensor": lambda x, other: (x.tolist(), other),
    "second broadcast": lambda x, other: (x, other[:1]),
    "first broadcast": lambda x, other: (x[:1], other),
    "batches differ": lambda x, other: (torch.cat([x, x, x]), other),
    "another batch": lambda x, other: (torch.cat([x, x, x]), torch.cat([other, other, other])),
    "empty batch": lambda x, other: (x[:0], other[:0]),
    "one batch empty": lambda x, other: (x, other[:0]),
    "not contiguous": lambda x, other: (strided(x), strided(other)),
    "expanded": lambda x, other: (x[:1].expand_as(x), other[..., :1].expand_as(other)),
    "negated lazily": lambda x, other: (torch._neg_view(x), torch._neg_view(other)),
    "larger": lambda x, other: (torch.cat([x, x], -1), torch.cat([other, other], -1)),
    "larger first": lambda x, other: (torch.cat([x, x], -1), other),
    "smaller": lambda x, other: (x[..., :1], other[..., :1]),
    "empty pixels": lambda x, other: (x[..., :0], other[..., :0]),
}


@pytest.fixture(scope="module")
def deployments() -> dict[type[nn.Module], tuple[nn.Module, Deployed]]:
    return {}


def outcome(model: nn.Module, inputs: Inputs) -> Tensor | type[Exception]:
    """The result, or the type of the error."""
    try:
        with torch.no_grad():
            result: Tensor = model(*inputs)
    except Exception as error:
        return type(error)
    return result


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_other_inputs(
    kind: type[nn.Module], change: str, deployments: dict[type[nn.Module], tuple[nn.Module, Deployed]]
) -> None:
    if kind not in deployments:
        torch.manual_seed(0)
        model = kind().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter[torch.rand_like(parameter) < 0.5] = 0
        deployments[kind] = model, deploy(model, EXAMPLES[kind], threads=1)
    model, deployed = deployments[kind]
    inputs = CHANGES[change](*EXAMPLES[kind])  # type: ignore[arg-type]
    expected, result = outcome(model, inputs), outcome(deployed, inputs)
    if isinstance(expected, Tensor):
        assert isinstance(result, Tensor)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    else:
        assert result is expected


def test_a_norm_folded_for_rows_refuses_sequences() -> None:
    """BatchNorm1d normalises the second dimension, which is another one for sequences."""
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).eval()
    with pytest.raises(ValueError, match=r"takes 2D input.*got \(2, 6, 6\)"):
        deploy(model, torch.randn(2, 6), threads=1)(torch.randn(2, 6, 6))


def test_inputs_of_unequal_batches_are_no_region() -> None:
    model = Towers().eval()
    x, other = torch.randn(3, 3, 8, 8), torch.randn(1, 3, 8, 8)
    deployed = deploy(model, (x, other), threads=1)
    assert not any(isinstance(part, NativeRegion) and len(part.region.inputs) > 1 for part in deployed.modules())
    torch.testing.assert_close(deployed(x, other), model(x, other))


@pytest.mark.parametrize("kind", [Convolutional, Linear], ids=lambda kind: kind.__name__)
def test_another_default_dtype(kind: type[nn.Module]) -> None:
    model = kind().eval()
    deployed = deploy(model, EXAMPLES[kind], threads=1)
    expected = outcome(model, EXAMPLES[kind])
    torch.set_default_dtype(torch.float16)
    try:
        result = outcome(deployed, EXAMPLES[kind])
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_layers_of_inputs_that_torch_computes() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), torch.randn(1, 3, 8, 8)
    layers = deploy(model, x, threads=1).layers(x[0])
    assert [(layer.how, layer.microseconds) for layer in layers] == [("torch", None)]
