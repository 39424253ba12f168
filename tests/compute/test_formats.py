"""Results lie in memory as torch's own would wherever somebody may call `view` on them, and as the kernels like elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autosparse
from autosparse import AutoSparse
from autosparse.compute.overrides import follow

STEPS = 3


class Net(nn.Module):
    """LeNet: convolutions without or with batch norms, then `view`."""

    def __init__(self, norm: Callable[[int], nn.Module] = lambda channels: nn.Identity()) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.norm1, self.norm2 = norm(4), norm(6)
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(6 * 9, 5)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.second(self.pool(F.relu(self.norm1(self.first(x)))))))

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)
        logits: Tensor = self.fc(y.view(y.size(0), -1))
        return logits


class Untraceable(Net):
    def features(self, x: Tensor) -> Tensor:
        return super().features(x if x.mean() < 1e9 else -x)


class Features(Net):
    """Gives a map of features to the caller."""

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x)


class Flattening(Net):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(x).flatten(1))
        return logits


def train(build: Callable[[], nn.Module], mode: str, memory_format: torch.memory_format) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = build().to(memory_format=memory_format)
    method = AutoSparse(alpha=0.0, schedule="constant", start_sparsity=0.5)
    autosparse.sparsify(model, method, epochs=1, steps_per_epoch=STEPS).compute(mode)
    x = torch.randn(4, 3, 6, 6).to(memory_format=memory_format)
    results = [model(x) for _ in range(STEPS)]
    results[-1].sum().backward()
    return model, results


@pytest.mark.parametrize("norm", [nn.Identity, nn.BatchNorm2d])
@pytest.mark.parametrize("kind", [Net, Untraceable, Flattening])
def test_results_can_be_viewed_as_with_dense_compute(native: None, kind: type[Net], norm: type[nn.Module]) -> None:
    expected = train(lambda: kind(norm), "dense", torch.contiguous_format)[1]
    model, results = train(lambda: kind(norm), "sparse", torch.contiguous_format)
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    model.eval()(torch.randn(2, 3, 6, 6))


@pytest.mark.parametrize("norm", [nn.Identity, nn.BatchNorm2d])
@pytest.mark.parametrize("kind", [torch.contiguous_format, torch.channels_last])
def test_callers_get_the_format_of_torch(native: None, kind: torch.memory_format, norm: type[nn.Module]) -> None:
    for mode in ("dense", "sparse"):
        for result in train(lambda: Features(norm), mode, kind)[1]:
            assert result.is_contiguous(memory_format=kind)


@pytest.mark.parametrize(
    ("kind", "formats"), [(Net, ["any", "weight"]), (Flattening, ["any", "any"]), (Untraceable, ["torch", "torch"])]
)
def test_only_results_that_may_be_viewed_are_converted(native: None, kind: type[Net], formats: list[str]) -> None:
    model, _ = train(kind, "sparse", torch.contiguous_format)
    assert isinstance(model, Net)
    assert [follow(module).result_format for module in (model.first, model.second)] == formats


def test_one_image_without_a_batch(native: None) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    autosparse.sparsify(model, AutoSparse(start_sparsity=0.5), epochs=1, steps_per_epoch=1).compute("sparse")
    assert model(torch.randn(3, 6, 6)).is_contiguous()
