"""A multilayer perceptron, 1024-4096-1024 with batches of 256, for `autosparse bench train`.

autosparse bench train mlp:build --inputs mlp:batch --sparsity 0.9 --threads 1 --method rigl
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))


def batch() -> Tensor:
    return torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
