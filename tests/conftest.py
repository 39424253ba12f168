"""What all tests share: single-threaded torch, a seed, and a short training loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import autosparse


@pytest.fixture(autouse=True)
def _quiet_and_seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Loop:
    """Three lines around a training loop on random data; the pieces stay reachable."""

    def __init__(
        self, model: nn.Module, method: autosparse.methods.Method, epochs: int = 4, steps: int = 5, **options: object
    ) -> None:
        self.model, self.epochs, self.steps = model, epochs, steps
        decay = {"weight_decay": options.pop("weight_decay", 1e-2), "threshold_decay": options.pop("threshold_decay", None)}
        shape = options.pop("shape", (10,))
        optimizer = options.pop("optimizer", "sgd")
        lr = options.pop("lr", 0.1)
        self.sp = autosparse.sparsify(model, method, epochs=epochs, steps_per_epoch=steps, **options)
        groups = self.sp.param_groups(**decay)
        self.opt = torch.optim.AdamW(groups, lr=lr) if optimizer == "adamw" else torch.optim.SGD(groups, lr=lr, momentum=0.9)
        self.sp.bind(self.opt)
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(16, *shape, generator=generator, dtype=next(model.parameters()).dtype)
        self.y = torch.randint(3, (16,), generator=generator)

    def loss(self) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(self.x), self.y) + self.sp.penalty()

    def step(self) -> float:
        loss = self.loss()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def epoch(self) -> float:
        losses = [self.step() for _ in range(self.steps)]
        mean = sum(losses) / len(losses)
        self.sp.end_epoch(loss=mean)
        return mean

    def run(self) -> list[float]:
        return [self.epoch() for _ in range(self.epochs)]


def small_net(width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


@pytest.fixture
def net() -> nn.Sequential:
    return small_net()


@pytest.fixture
def loop() -> Callable[..., Loop]:
    return Loop
