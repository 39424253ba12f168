"""One training run of a member: three lines of autosparse around a plain loop, a checkpoint, and the way back."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import autosparse
from autosparse import AutoSparse, Sparsifier

from .member import Member, Task

EPOCHS, STEPS = 6, 10
TARGET = 0.8


class Run:
    """A member in training on its one batch."""

    def __init__(
        self, member: Member, precision: str, optimizer: str, seed: int, wrap: Callable[[nn.Module], Any] | None = None
    ) -> None:
        torch.manual_seed(seed)
        self.task: Task = member.build()
        self.model = self.task.model.train()
        self.precision = precision
        self.sp: Sparsifier = autosparse.sparsify(
            self.model, AutoSparse(target_sparsity=TARGET), epochs=EPOCHS, steps_per_epoch=STEPS
        )
        self.forward = self.model if wrap is None else wrap(self.model)
        groups = self.sp.param_groups()
        self.optimizer: torch.optim.Optimizer
        if optimizer == "SGD":
            self.optimizer = torch.optim.SGD(groups, lr=member.sgd_rate, momentum=0.9)
        else:
            self.optimizer = torch.optim.AdamW(groups, lr=member.adamw_rate)
        self.sp.bind(self.optimizer)

    def loss(self) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
            return self.task.training_loss(self.forward)

    def step(self) -> float:
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def advance(self, to: int) -> list[float]:
        losses: list[float] = []
        while self.sp.step < to:
            losses.append(self.step())
            if self.sp.step % STEPS == 0:
                self.sp.end_epoch(loss=losses[-1])
        return losses

    def checkpoint(self) -> bytes:
        """What a user writes to resume from, as a file."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sparsifier": self.sp.state_dict(),
            "random": torch.get_rng_state(),
        }
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def resume(self, checkpoint: bytes) -> None:
        state = torch.load(io.BytesIO(checkpoint), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sp.load_state_dict(state["sparsifier"])
        torch.set_rng_state(state["random"])
