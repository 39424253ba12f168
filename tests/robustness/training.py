"""Small nets, seeded batches and a training loop that can stop anywhere: shared by the tests and their worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import autosparse
from autosparse.methods.families.base import Method

CLASSES = 3


def mlp(inputs: int = 10, width: int = 24) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES))


def conv_net() -> nn.Sequential:
    """Convolutions with batch norm for (1, 8, 8) images."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, CLASSES)
    )


def batch(step: int, shape: Sequence[int], dtype: torch.dtype = torch.float32, size: int = 8) -> tuple[Tensor, Tensor]:
    """The batch of one step, the same in every process."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(size, *shape, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(CLASSES, (size,), generator=generator)


def make_optimizer(name: str, groups: Any, lr: float | None = None, **options: Any) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr or 0.05, momentum=0.9, **options)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[name](groups, lr=lr or 0.01, **options)


@dataclass
class Run:
    """A sparsified model with its optimizer; `forward` is the wrapped model where there is a wrapper."""

    model: nn.Module
    sp: autosparse.Sparsifier
    opt: torch.optim.Optimizer
    shape: tuple[int, ...]
    forward: nn.Module | None = None
    rows: slice = field(default_factory=lambda: slice(None))  # this rank's part of every batch

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def step(self) -> float:
        inputs, targets = (each[self.rows] for each in batch(self.sp.step, self.shape, self.dtype))
        forward = self.model if self.forward is None else self.forward
        loss = nn.functional.cross_entropy(forward(inputs), targets) + self.sp.penalty()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return float(loss.detach())

    def advance(self, steps: int, close_last: bool = True) -> None:
        """Train; an epoch is closed after its last step, or left open there if that is where the run stops."""
        for number in range(steps):
            loss = self.step()
            if self.sp.step % self.sp.steps_per_epoch == 0 and (close_last or number < steps - 1):
                self.sp.end_epoch(loss=loss)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "sp": self.sp.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.opt.load_state_dict(state["opt"])
        self.sp.load_state_dict(state["sp"])


def begin(
    model: nn.Module,
    method: Method,
    shape: tuple[int, ...] = (10,),
    optimizer: str = "sgd",
    weight_decay: float = 1e-2,
    epochs: int = 4,
    steps: int = 5,
    fused: bool | None = None,
    **options: Any,
) -> Run:
    sp = autosparse.sparsify(model, method, epochs=epochs, steps_per_epoch=steps, **options)
    opt = make_optimizer(optimizer, sp.param_groups(weight_decay=weight_decay), fused=fused)
    sp.bind(opt)
    return Run(model, sp, opt, shape)
