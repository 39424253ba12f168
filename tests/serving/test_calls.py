"""How deployed models are called: keywords, defaults, nested inputs, several outputs; what stays in torch, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.kernels import library
from autosparse.serving import deploy
from autosparse.serving.agreement import agree
from autosparse.serving.capture import Captured
from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import NativeRegion

from .pairs import assert_same, deployed_beside, reason

pytestmark = [
    pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}"),
    pytest.mark.filterwarnings("ignore:deploy"),
    pytest.mark.usefixtures("native_wins"),
]


@dataclass
class Parts:
    """An output of somebody's own."""

    total: Tensor
    halves: tuple[Tensor, Tensor]


class Optional(nn.Module):
    """Everything but the first argument may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, other: Tensor | None = None, *, scale: float = 1.0, **more: Tensor) -> Tensor:
        y = F.relu(self.first(x)) * scale
        if other is not None:
            y = y + self.second(other)
        for value in more.values():
            y = y * value
        return y


class Several(nn.Module):
    """Nested inputs, a dataclass and a dict as outputs."""

    def __init__(self, as_dict: bool) -> None:
        super().__init__()
        self.layer, self.as_dict = nn.Linear(8, 6), as_dict

    def forward(self, pair: tuple[Tensor, Tensor], extras: dict[str, Tensor]) -> Any:
        y = self.layer(pair[0]) + self.layer(pair[1]) * extras["weight"]
        halves = y[:, :3], y[:, 3:]
        return {"total": y, "halves": halves, "nothing": None} if self.as_dict else Parts(y, halves)


X, Y = torch.randn(3, 8), torch.randn(3, 8)


def test_keywords_and_defaults_are_captured() -> None:
    model, deployed = deployed_beside(Optional(), {"other": Y, "x": X})
    assert isinstance(deployed.module, Captured)
    assert len([part for part in deployed.modules() if isinstance(part, PackedLinear)]) == 2
    for inputs, named in (((X, Y), {}), ((X,), {"other": Y}), ((), {"other": Y, "x": X})):
        assert_same(deployed, model, *inputs, **named)
    assert_same(deployed, model, torch.randn(5, 8), torch.randn(5, 8))


@pytest.mark.parametrize("named", [{}, {"other": Y, "scale": 2.0}, {"other": Y, "more": X}, {"other": None}])
def test_a_call_unlike_the_example_is_computed_by_the_model_itself(named: dict[str, Any]) -> None:
    model, deployed = deployed_beside(Optional(), (X, Y))
    with pytest.warns(UserWarning, match="called unlike deploy's example"):
        assert_same(deployed, model, X, **named)


@pytest.mark.parametrize("named", [{"x": X, "z": Y[:2]}, {"other": Y}, {"x": X, "other": 3}, {"x": X.long(), "other": Y}])
def test_a_wrong_call_gets_the_models_own_error(named: dict[str, Any]) -> None:
    model, deployed = deployed_beside(Optional(), {"x": X, "other": Y})
    with pytest.raises(Exception) as expected, torch.no_grad():  # noqa: PT011  whatever the plain model raises
        model(**named)
    with pytest.raises(type(expected.value)):
        deployed(**named)


@pytest.mark.parametrize("as_dict", [False, True])
def test_nested_inputs_and_several_outputs(as_dict: bool) -> None:
    inputs = (X, Y), {"weight": torch.rand(3, 1)}
    model, deployed = deployed_beside(Several(as_dict), inputs)
    assert isinstance(deployed.module, Captured)
    assert_same(deployed, model, *inputs)
    assert_same(deployed, model, (Y, X), {"weight": torch.rand(3, 1)})
    assert_same(deployed, model, pair=(Y, X), extras={"weight": torch.rand(3, 1)})


def test_a_list_holds_positional_arguments() -> None:
    model, deployed = deployed_beside(Optional(), [X, Y])
    assert_same(deployed, model, X, Y)


def test_keys_that_are_no_names_are_refused() -> None:
    with pytest.raises(TypeError, match="must be names of arguments"):
        deploy(Optional(), {1: X})


class ChangesItsInput(nn.Module):
    """As some preprocessing does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.mul_(2.0))
        return y


def test_the_example_and_the_random_numbers_stay_as_they_are() -> None:
    x, state = torch.ones(2, 8), torch.get_rng_state()
    model = ChangesItsInput().eval()
    torch.set_rng_state(state)
    deployed = deploy(model, x, threads=1)
    assert torch.equal(x, torch.ones(2, 8))
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(deployed(x.clone()), model(x.clone()))


class Noisy(nn.Module):
    """Draws new numbers at every call, without looking at its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + torch.rand(4)
        return y


def test_random_numbers_do_not_become_constants() -> None:
    _, deployed = deployed_beside(Noisy(), X)
    assert not torch.equal(deployed(X), deployed(X))
    assert any(isinstance(part, PackedLinear) for part in deployed.modules())


class Layers(nn.Module):
    """A layer that is used at two places, one called by keyword, one with a hook, one of a subclass, one that does more."""

    class Same(nn.Linear):
        """Changes nothing."""

    class Twice(nn.Linear):
        """Computes in its own way."""

        def forward(self, input: Tensor) -> Tensor:
            return 2.0 * super().forward(input)

    def __init__(self) -> None:
        super().__init__()
        self.shared = self.again = nn.Linear(8, 8)
        self.named, self.hooked, self.same, self.twice = nn.Linear(8, 8), nn.Linear(8, 8), self.Same(8, 8), self.Twice(8, 8)
        self.hooked.register_forward_hook(lambda module, inputs, result: result + 1.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.again(self.named(input=self.shared(x)))
        return self.twice(self.same(self.hooked(y)))


class Branching(Layers):
    """The same where torch.fx cannot follow."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if float(x.sum()) < 1e9 else -x)


@pytest.mark.parametrize("kind", [Layers, Branching])
def test_layers_that_are_not_quite_linear(kind: type[nn.Module]) -> None:
    model, deployed = deployed_beside(kind(), X)
    assert_same(deployed, model, X)
    names = {part.name for part in deployed.modules() if isinstance(part, PackedLinear)}
    assert {"shared", "same"} <= names
    assert "own way, or has hooks" in reason(deployed, "hooked")
    assert "own way, or has hooks" in reason(deployed, "twice")
    (note,) = [note for note in deployed.notes if "layers stay in torch" in note]
    assert "hooked" in note
    assert "twice" in note


class SqueezeExcite(nn.Module):
    """A block as timm's EfficientNets have it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.act, self.gate = nn.SiLU(inplace=True), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.act(self.reduce(x.mean((2, 3), keepdim=True)))))


class Norm2d(nn.LayerNorm):
    """Of channels, as in timm."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return y.permute(0, 3, 1, 2)


class StandardizedConv(nn.Conv2d):
    """Weights normalised at every call, as in ResNetV2."""

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(self.weight.reshape(1, len(self.weight), -1), None, None, training=True).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class PictureNet(nn.Module):
    """Blocks of the style of several nets, a check of the size in Python, and features by name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Identity(), nn.ReLU(inplace=True))
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 5, padding=2, groups=8), nn.BatchNorm2d(8), nn.Hardswish(inplace=True))
        self.excite, self.norm = SqueezeExcite(8), Norm2d(8)
        self.standard = StandardizedConv(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, features: bool = False) -> Any:
        assert x.shape[-1] % 4 == 0, "the width must be a multiple of 4"
        y = self.standard(self.norm(self.excite(self.depthwise(self.stem(x)))))
        logits = self.head(y.mean((2, 3)))
        return {"logits": logits, "features": y} if features else logits


def test_a_net_in_the_style_of_timm() -> None:
    x = torch.randn(2, 3, 16, 16)
    model, deployed = deployed_beside(PictureNet(), {"x": x, "features": True})
    assert_same(deployed, model, x, features=True)
    assert_same(deployed, model, torch.randn(3, 3, 24, 24))
    assert any(isinstance(part, NativeRegion) for part in deployed.modules())
    assert "StandardizedConv computes in its own way" in reason(deployed, "standard")
    with pytest.raises(AssertionError, match="multiple of 4"):
        deployed(torch.randn(1, 3, 18, 18))


class Watched(nn.Module):
    """A block whose outputs somebody collects."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.block(x))
        return y


@pytest.mark.parametrize("watched", ["", "block", "block.0", "block.1"])
def test_hooks_still_see_every_call(watched: str) -> None:
    seen: list[Tensor] = []
    model = Watched()
    model.get_submodule(watched).register_forward_hook(lambda module, inputs, result: seen.append(result))
    model, deployed = deployed_beside(model, X)
    seen.clear()
    for _ in range(2):
        assert_same(deployed, model, X)
    assert len(seen) == 4
    assert all(agree(result, seen[0]) for result in seen)


def test_attributes_and_methods_of_the_model_are_still_there() -> None:
    class Named(Optional):
        classes = ("cat", "dog")

        def embed(self, x: Tensor) -> Tensor:
            y: Tensor = self.first(x)
            return y

    model, deployed = deployed_beside(Named(), (X, Y))
    assert isinstance(deployed.module, Captured)
    assert deployed.classes == ("cat", "dog")
    torch.testing.assert_close(deployed.embed(X), model.embed(X))  # type: ignore[operator]
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = deployed.no_such_thing
