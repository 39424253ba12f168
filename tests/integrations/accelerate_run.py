"""A plain loop through accelerate; as a script, one rank of two."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autosparse
from autosparse import AutoSparse, AutoTune
from autosparse.methods.families.base import Method

EPOCHS, ACCUMULATION, CLIP = 4, 2, 0.01
TARGET = AutoSparse(target_sparsity=0.7)
TUNED = AutoSparse(autotune=AutoTune(epochs=3, reference=(1.2, 1.1, 1.0)), start_sparsity=0.5)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)).double()


def data() -> TensorDataset:
    """80 samples: an epoch of five batches of 16, or of ten batches of 8, in the same steps of 32, 32 and 16."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(80, 10, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0))


@dataclass
class Run:
    """The order of things: the loader first, since its length says how many steps an epoch has on each process."""

    method: Method
    batch: int
    seed: int = 0
    precision: str = "no"
    losses: list[float] = field(default_factory=list)
    gradients: list[tuple[float, float]] = field(default_factory=list)  # norms of the weights' and the thresholds'

    def __post_init__(self) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION, mixed_precision=self.precision)
        self.loader = self.accelerator.prepare(DataLoader(data(), batch_size=self.batch))
        self.plain = net(self.seed)
        steps = math.ceil(len(self.loader) / ACCUMULATION)
        self.sp = autosparse.sparsify(self.plain, self.method, epochs=EPOCHS, steps_per_epoch=steps)
        optimizer = torch.optim.AdamW(self.sp.param_groups(weight_decay=0.01), lr=0.02)
        self.model, self.optimizer = self.accelerator.prepare(self.plain, optimizer)
        self.sp.bind(self.optimizer)
        self.accelerator.register_for_checkpointing(self.sp)

    def epoch(self) -> None:
        losses = []
        for inputs, targets in self.loader:
            with self.accelerator.accumulate(self.model):
                loss = nn.functional.cross_entropy(self.model(inputs), targets)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    weights = [each for group in self.optimizer.param_groups[:-1] for each in group["params"]]
                    self.accelerator.clip_grad_norm_(weights, CLIP)
                    self.gradients.append((norm(weights), norm(self.sp.thresholds())))
                self.optimizer.step()
                self.optimizer.zero_grad()
            losses.append(loss.item())
        self.losses.append(sum(losses) / len(losses))
        self.sp.end_epoch(loss=self.losses[-1])

    def seen(self) -> dict[str, Any]:
        return {
            "model": self.plain.state_dict(),
            "sp": self.sp.state_dict(),
            "opt": self.optimizer.state_dict(),
            "gradients": self.gradients,
        }


def norm(parameters: list[Tensor]) -> float:
    return float(torch.stack([each.grad.norm() for each in parameters if each.grad is not None]).norm())


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    whole = Run(TUNED, batch=8)
    rank = whole.accelerator.process_index
    for epoch in range(EPOCHS):
        whole.epoch()
        if epoch == 1:
            whole.accelerator.save_state(str(folder / "checkpoint"))
    resumed = Run(TUNED, batch=8, seed=5 + rank)
    resumed.accelerator.load_state(str(folder / "checkpoint"))
    while resumed.sp.epoch < EPOCHS:
        resumed.epoch()
    target = Run(TARGET, batch=8, seed=rank)  # every rank has other weights until prepare gives it those of rank 0
    for _ in range(EPOCHS):
        target.epoch()
    runs = {"whole": whole, "resumed": resumed, "target": target}
    torch.save({name: run.seen() for name, run in runs.items()}, folder / f"rank{rank}.pt")
    if dist.is_initialized():
        dist.barrier()  # a process that leaves early can abort the others
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
