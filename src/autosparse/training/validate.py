"""Loss and accuracy of a model on a split, over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.data import Batches
from autosparse.training.processes import Processes

IGNORED = -100  # torch's own mark of targets that do not count


@dataclass(frozen=True)
class Score:
    """Means over the targets of a split: images, or tokens."""

    loss: float
    accuracy: float
    targets: int


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """bfloat16 where the recipe asks for it."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")


def summed_loss(output: Tensor, target: Tensor, padding_id: int | None, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy summed over targets; filler does not count."""
    ignored = IGNORED if padding_id is None else padding_id
    logits = output.flatten(0, -2).float()
    return F.cross_entropy(logits, target.flatten(), reduction="sum", ignore_index=ignored, label_smoothing=label_smoothing)


@torch.no_grad()
def validate(
    model: nn.Module,
    batches: Batches,
    device: torch.device,
    *,
    padding_id: int | None = None,
    precision: str = "float32",
    processes: Processes | None = None,
) -> Score:
    """Every sample of the split once; the model is left in evaluation mode."""
    processes = processes or Processes()
    model.eval()
    sums = torch.zeros(3, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
    for counts, (inputs, target) in _in_step(batches, processes):
        inputs, target = tuple(tensor.to(device) for tensor in inputs), target.to(device)
        with autocast(device, precision):
            output = model(*inputs)
        if counts:
            real = torch.ones_like(target, dtype=torch.bool) if padding_id is None else target != padding_id
            right = ((output.argmax(-1) == target) & real).sum()
            sums += torch.stack([summed_loss(output, target, padding_id), right, real.sum()]).to(sums.dtype)
    loss, right, count = processes.total(sums).tolist()
    if not count:
        raise ValueError("the validation split holds no sample")
    return Score(loss / count, right / count, int(count))


def _in_step(batches: Batches, processes: Processes) -> Iterator[tuple[bool, tuple[tuple[Tensor, ...], Tensor]]]:
    """This rank's batches; ranks with fewer repeat their last one uncounted, since a sharded model runs on all together."""
    longest = max(processes.gather(batches.steps))
    batch = None
    for batch in batches.epoch(0):
        yield True, batch
    for _ in range(longest - batches.steps):
        if batch is None:
            raise ValueError("a process has no validation sample: use fewer processes, or more samples")
        yield False, batch
