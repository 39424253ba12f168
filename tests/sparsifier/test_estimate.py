"""`autosparse.estimate`: what it says of a model; how fast anything is is not a test."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autosparse
from autosparse import kernels
from autosparse.sparsifier.estimate import Estimate, LayerEstimate


def test_it_names_every_layer_with_its_reason_and_leaves_the_model_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    inputs, random = torch.randn(16, 12), torch.get_rng_state()
    estimate = autosparse.estimate(model, inputs, sparsity=0.8)
    assert torch.equal(random, torch.get_rng_state())
    assert list(before) == list(model.state_dict())
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [(layer.name, layer.kind, layer.weights) for layer in estimate.layers] == [("0", "Linear", 96), ("3", "Linear", 24)]
    if kernels.available():
        assert all(layer.computed.startswith("dense: too small") for layer in estimate.layers)
    assert estimate.samples == 16
    assert estimate.milliseconds > 0 < estimate.dense_milliseconds
    assert estimate.speedup == estimate.dense_milliseconds / estimate.milliseconds


@pytest.mark.skipif(not kernels.available(), reason="without kernels nothing is measured")
def test_a_large_layer_is_measured() -> None:
    (layer,) = autosparse.estimate(nn.Linear(512, 256), torch.randn(256, 512)).layers
    assert layer.dense_milliseconds is not None
    assert layer.milliseconds is not None
    assert layer.milliseconds <= 1.001 * layer.dense_milliseconds, "the planner never chooses what it measured to be slower"


def test_it_takes_keywords_and_outputs_of_any_kind() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, ids: Tensor) -> dict[str, object]:
            return {"ids": ids, "both": (self.first(x), self.second(x))}

    inputs = {"x": torch.randn(2, 4), "ids": torch.arange(2)}
    assert len(autosparse.estimate(Pair(), inputs, exclude="first").layers) == 1
    with pytest.raises(ValueError, match=r"sparsity = 1\.5"):
        autosparse.estimate(Pair(), inputs, sparsity=1.5)
    with pytest.raises(ValueError, match="no tensor with a gradient"):
        autosparse.estimate(nn.Sequential(nn.Linear(4, 4), Detached()), torch.randn(2, 4))


class Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


@pytest.mark.parametrize(("dense", "verdict"), [(3.0, "it pays: 1 of 2"), (1.0, "it does not pay in time: 1 of 2")])
def test_it_prints_as_a_table_that_gives_the_verdict(dense: float, verdict: str) -> None:
    layers = (
        LayerEstimate("a", "Linear", 100, 2.0, 1.0, "skips zeros: all passes"),
        LayerEstimate("b", "Linear", 10, None, None, "dense: too small"),
    )
    text = str(Estimate(0.9, 16, 2, dense, 2.0, layers))
    assert verdict in text
    assert f"{dense / 2:.2f} times as fast" in text
    assert "dense: too small" in text
