"""Fused training of whole models: what is fused, what is left alone, and the same numbers as torch."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import autosparse
from autosparse import AutoSparse
from autosparse.compute import fused_forward


class Residual(nn.Module):
    """As users write them: functional ReLU, `+=`, a bias before the batch norm."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, momentum=None)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return torch.relu(y)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.Sequential(Residual(12, 20, 2), Residual(20, 20))
        self.depthwise = nn.Sequential(nn.Conv2d(20, 20, 3, 1, 1, groups=20, bias=False), nn.BatchNorm2d(20), nn.ReLU())
        self.fc = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc(self.depthwise(self.blocks(self.stem(x))).mean((2, 3)))
        return found


class Branching(Net):
    """Cannot be traced: its forward looks at the input's values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.mean() < 1e9 else -x)


class Dropping(Net):
    """Draws Python's random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if random.random() < 2 else 0.0)


class DroppingByNumpy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if np.random.rand() < 2 else 0.0)


class Optional(Net):
    """Cannot be traced, and is called as Hugging Face's models are: by keyword, beside arguments that are no tensors."""

    def forward(self, pixels: Tensor | None = None, scale: float = 1.0, names: tuple[str, ...] = ()) -> Tensor:
        assert pixels is not None
        states = self.blocks(input=self.stem(pixels * scale))
        return self.fc(self.depthwise(input=states).mean((2, 3)))


SWITCH = {"negative": False}


class Switched(Net):
    """Depends on what no attribute shows."""

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x) if SWITCH["negative"] else super().forward(x)


BATCH_NORMS = 8


def start(model: nn.Module, mode: str = "sparse") -> autosparse.Sparsifier:
    method = AutoSparse(alpha=0.0, schedule="constant", start_sparsity=0.7)
    sp = autosparse.sparsify(model, method, epochs=2, steps_per_epoch=10)
    sp.compute(mode)
    return sp


def images(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 12, 12, generator=generator), torch.randint(5, (count,), generator=generator)


def gradients(kind: type[Net], mode: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = kind()
    start(model, mode)
    model.to(dtype)
    x, y = images()
    for _ in range(2):
        model.zero_grad()
        F.cross_entropy(model(x.to(dtype)), y).backward()
    return model, {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize(("kind", "fused"), [(kind, BATCH_NORMS) for kind in (Net, Branching, Dropping, DroppingByNumpy)])
def test_gradients_and_statistics_are_those_of_torch(native: None, kind: type[Net], fused: int) -> None:
    exact, wanted = gradients(kind, "dense", torch.float64)
    _, near = gradients(kind, "dense")
    model, found = gradients(kind, "sparse")
    assert fused_forward.count_fused(model) == fused
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = value.norm() + 1e-6
        ours, theirs = ((each[name].double() - value).norm() / scale for each in (found, near))
        assert ours <= 1e-4 + 3 * theirs, name
    held = dict(model.named_buffers())
    for name, value in exact.named_buffers():
        assert torch.allclose(held[name].double(), value.double(), rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("call", ["model(pixels=x)", "model(x, 0.5)", "model(x, names=('a',))"])
def test_calls_by_keyword_and_with_other_arguments_are_fused_too(native: None, call: str) -> None:
    results = {}
    for mode in ("dense", "sparse"):
        torch.manual_seed(0)
        model, (x, _) = Optional(), images()
        start(model, mode)
        for _ in range(2):
            model.zero_grad()
            eval(call, {"model": model, "x": x}).square().sum().backward()
        results[mode] = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    assert fused_forward.count_fused(model) == BATCH_NORMS
    for name, value in results["dense"].items():
        torch.testing.assert_close(results["sparse"][name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v1"])
def test_the_package_models_are_fused_whole(native: None, name: str) -> None:
    model = autosparse.models.build(name)
    norms = sum(isinstance(each, nn.BatchNorm2d) for each in model.modules())
    sp = start(model)
    for _ in range(2):  # at the first pass hooks count what the layers cost
        model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert fused_forward.count_fused(model) == norms
    assert f"{norms} batch norms are fused" in str(sp.report())


def test_a_forward_that_has_changed_is_followed_from_the_next_plan_on(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, (x, _) = Switched(), images()
    sp = start(model)
    before = model(x)
    monkeypatch.setitem(SWITCH, "negative", True)
    sp.compute("sparse")
    assert torch.allclose(model(x), -before, atol=1e-5)
    assert fused_forward.count_fused(model) == BATCH_NORMS


def test_hooked_modules_are_called_and_not_fused(native: None) -> None:
    model, (x, _) = Net(), images()
    start(model)
    model(x)
    seen: list[str] = []
    hooks = [
        model.stem[1].register_forward_hook(lambda *_: seen.append("norm")),
        model.blocks[0].register_forward_hook(lambda *_: seen.append("block")),
    ]
    model(x)
    assert seen == ["norm", "block"]
    assert fused_forward.count_fused(model) == BATCH_NORMS - 4
    for hook in hooks:
        hook.remove()
    model(x)
    assert len(seen) == 2
    assert fused_forward.count_fused(model) == BATCH_NORMS


def test_frozen_norms_and_evaluation_use_running_statistics(native: None) -> None:
    torch.manual_seed(0)
    model, (x, _) = Net(), images()
    start(model)
    model(x)
    model.stem[1].eval()
    before = model.stem[1].running_mean.clone()
    model(x)
    assert torch.equal(model.stem[1].running_mean, before)
    assert fused_forward.count_fused(model) == BATCH_NORMS - 1
    model.eval()
    twin = copy.deepcopy(model)
    fused_forward.remove(twin)
    assert torch.equal(model(x), twin(x))


def test_copies_keys_and_the_way_back(native: None) -> None:
    torch.manual_seed(0)
    model, (x, _) = Net(), images()
    keys = list(model.state_dict())
    sp = start(model)
    sparse_keys = list(model.state_dict())
    model(x)
    twin = copy.deepcopy(model)
    mean = model.stem[1].running_mean.clone()
    twin(x)
    assert fused_forward.count_fused(twin) == BATCH_NORMS
    assert torch.equal(model.stem[1].running_mean, mean), "the copy keeps statistics of its own"
    assert list(model.state_dict()) == sparse_keys
    sp.compute("dense")
    assert "forward" not in vars(model)
    sp.compute("auto")
    plain = sp.finalize()
    assert "forward" not in vars(plain)
    assert list(plain.state_dict()) == keys


def test_what_a_checkpoint_computes_again_is_what_it_computed(native: None) -> None:
    """The first forward pass runs under hooks that are gone in the backward pass; torch refuses to fuse only there."""
    model, (x, y) = Net(), images()
    sp = start(model)
    for _ in range(2):
        F.cross_entropy(checkpoint(model, x, use_reentrant=False), y).backward()
    assert fused_forward.count_fused(model) == BATCH_NORMS
    sp.finalize()


def test_compiled_models_run_layer_by_layer(native: None) -> None:
    torch.manual_seed(0)
    model, (x, _) = Net(), images()
    twin = copy.deepcopy(model)
    start(model), start(twin)
    compiled = torch.compile(twin, backend="aot_eager")
    assert torch.allclose(compiled(x), model(x), atol=1e-4)


def test_a_sum_that_broadcasts_is_left_to_torch(native: None) -> None:
    class Broadcast(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = self.stem[1](self.stem[0](x))
            found: Tensor = F.relu(y + y.detach().mean((2, 3), keepdim=True)).mean((1, 2, 3))
            return found

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.bn(self.conv(x)) + x.mean((1, 2, 3), keepdim=True))

    for kind in (Broadcast, Other):
        torch.manual_seed(0)
        model = kind()
        twin = copy.deepcopy(model)
        start(model), start(twin, "dense")
        x = images()[0]
        assert torch.allclose(model(x), twin(x), atol=1e-4)


def test_one_value_a_channel_is_refused_as_by_torch(native: None) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    start(model)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.ones(1, 3, 1, 1))
