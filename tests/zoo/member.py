"""A member of the zoo: a network that nobody here wrote, at a size that trains for 60 steps in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree

LIBRARIES = ("torch", "transformers", "timm", "diffusers")
LATER = "later"  # networks that were chosen last and are run on demand


@dataclass(frozen=True)
class Task:
    """A network, one batch for it, and the loss of its output on that batch."""

    model: nn.Module
    inputs: tuple[Any, ...]
    loss: Callable[[Any], Tensor]
    named: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)  # passed in training only, for networks that compute their own loss

    def training_loss(self, model: nn.Module) -> Tensor:
        return self.loss(model(*self.inputs, **self.named, **self.labels))


@dataclass(frozen=True)
class Member:
    name: str
    library: str
    family: str  # "convolution", "attention", "recurrence", "other"
    build: Callable[[], Task]
    sgd_rate: float = 0.02
    adamw_rate: float = 1e-3
    all_precisions: bool = False
    compiles: str | None = None  # the backend of torch.compile: inductor takes minutes for all but small networks
    in_two_processes: bool = False


def tensors_of(output: Any) -> list[Tensor]:
    """All floating-point tensors of whatever a network returns, caches included."""
    leaves = _pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def classification(labels: Tensor) -> Callable[[Any], Tensor]:
    return lambda output: F.cross_entropy(_first(output).float(), labels)


def regression(target: Tensor) -> Callable[[Any], Tensor]:
    return lambda output: F.mse_loss(_first(output).float(), target)


def its_own(output: Any) -> Tensor:
    """The loss that a network computes from its labels."""
    loss: Tensor = output.loss
    return loss


def _first(output: Any) -> Tensor:
    return tensors_of(output)[0]
