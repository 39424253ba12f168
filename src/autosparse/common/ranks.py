"""How the processes that train together agree."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def leads() -> bool:
    """Whether this process decides for all of them."""
    return ranks() == 1 or dist.get_rank() == 0


def from_first_rank(value: T, device: torch.device) -> T:
    """The leading process's value, on all of them: plain values and tensors."""
    if ranks() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=device)
    return box[0]


def mean_over_ranks(value: float, device: torch.device) -> float:
    """The mean of one float over all processes; the float itself in a single process."""
    if ranks() == 1:
        return value
    # nccl reduces device tensors only, gloo the CPU's: the model's device fits both
    total = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return float(total) / ranks()
