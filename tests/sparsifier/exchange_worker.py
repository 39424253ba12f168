"""A rank of the tests of the exchange: short runs with the hook and without it, their weights and bytes in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autosparse
from autosparse import AutoSparse, Keep, RigL
from autosparse.methods import Method

STEPS = 6
METHODS: dict[str, Callable[[], Method]] = {
    "rigl": lambda: RigL(sparsity=0.9, update_every=4, dense_first=False),
    "keep": Keep,
    "alpha 0": lambda: AutoSparse(alpha=0.0, start_sparsity=0.9),
    "alpha > 0": lambda: AutoSparse(alpha=0.5, start_sparsity=0.9),
    "backward sparsity": lambda: AutoSparse(alpha=0.5, start_sparsity=0.9, backward_sparsity=0.8),
}


def net() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 64), nn.Linear(64, 10))
    return model.to(memory_format=torch.channels_last)


def train(method: Method, hooked: bool, dtype: torch.dtype | None = None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = net()
    for weight in model.parameters():  # zeros for Keep
        weight.detach().mul_(torch.rand(weight.shape) < 0.1 if isinstance(method, Keep) else 1)
    sp = autosparse.sparsify(model, method, epochs=1, steps_per_epoch=STEPS, guard=None)
    sp.compute("dense")  # what measured faster may differ from run to run, and with it the last bit
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.05)
    exchange = sp.communication_hook(ddp, dtype=dtype) if hooked else None
    opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    sp.bind(opt)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        opt.zero_grad()
        ddp(torch.randn(4, 3, 4, 4, generator=data)).square().mean().backward()
        opt.step()
    sent = (exchange.sent_bytes, exchange.dense_bytes) if exchange else None
    return {"weights": [weight.detach().clone() for weight in model.parameters()], "bytes": sent}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    found = {name: {"plain": train(make(), False), "hooked": train(make(), True)} for name, make in METHODS.items()} | {
        "bfloat16": train(METHODS["keep"](), True, torch.bfloat16)
    }
    torch.save(found, folder / f"rank{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
