"""A two-layer net (12 -> 16 -> 4, ReLU) with its backward pass and momentum SGD in plain NumPy, and its torch twin.

The loss is sum((output - target)^2) / (2 * batch). Weights are named as in torch: "0" is the first Linear, "2" the second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]
LAYERS = ("0", "2")


def torch_net(seed: int = 0) -> nn.Sequential:
    """The torch twin, in float64."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)).double()


def batches(count: int, seed: int = 1, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Random inputs and targets in float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(width: int) -> Tensor:
        return torch.randn(size, width, generator=generator, dtype=torch.float64)

    return [(draw(12), draw(4)) for _ in range(count)]


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target) ** 2).sum() / (2 * len(target))


@dataclass
class NumpyNet:
    """Stored weights and biases by layer name; what the forward pass sees of the weights is given at each call."""

    weights: dict[str, Array]
    biases: dict[str, Array]

    @classmethod
    def like(cls, model: nn.Sequential) -> NumpyNet:
        """A copy of a plain (not sparsified) torch twin."""
        state = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
        return cls({name: state[f"{name}.weight"] for name in LAYERS}, {name: state[f"{name}.bias"] for name in LAYERS})

    def forward(self, x: Array, effective: dict[str, Array] | None = None) -> Array:
        seen = effective or self.weights
        hidden = np.maximum(x @ seen["0"].T + self.biases["0"], 0)
        return np.asarray(hidden @ seen["2"].T + self.biases["2"])

    def gradients(
        self, x: Array, y: Array, effective: dict[str, Array] | None = None
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Dense dL/d(effective weight) and dL/d(bias), by layer name."""
        seen = effective or self.weights
        before = x @ seen["0"].T + self.biases["0"]
        hidden = np.maximum(before, 0)
        at_output = (hidden @ seen["2"].T + self.biases["2"] - y) / len(x)
        at_hidden = (at_output @ seen["2"]) * (before > 0)
        return {"0": at_hidden.T @ x, "2": at_output.T @ hidden}, {"0": at_hidden.sum(0), "2": at_output.sum(0)}


@dataclass
class MomentumSGD:
    """torch's SGD: buffer = momentum * buffer + gradient + decay * weight; weight -= lr * buffer. Buffers start at 0."""

    lr: float
    momentum: float = 0.9
    decay: float = 0.0
    buffers: dict[str, Array] = field(default_factory=dict)

    def update(self, key: str, value: Array, gradient: Array) -> None:
        """One step of one tensor, in place; `key` names its buffer."""
        buffer = self.buffers.setdefault(key, np.zeros_like(value))
        buffer *= self.momentum
        buffer += gradient + self.decay * value
        value -= self.lr * buffer

    def step(self, net: NumpyNet, weight_gradients: dict[str, Array], bias_gradients: dict[str, Array]) -> None:
        """One step of all weights and biases; buffers are named "0.weight", "0.bias", ..."""
        for name in LAYERS:
            self.update(f"{name}.weight", net.weights[name], weight_gradients[name])
            self.update(f"{name}.bias", net.biases[name], bias_gradients[name])
