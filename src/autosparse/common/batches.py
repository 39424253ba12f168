"""How a batch is given to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def feed(model: nn.Module, batch: Any) -> Any:
    """The model's output on a batch: a tensor, a mapping of keyword inputs, or a sequence whose first element is the input."""
    device = next(model.parameters(), torch.empty(0)).device
    if isinstance(batch, Mapping):
        return model(**{name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()})
    value = batch[0] if isinstance(batch, tuple | list) else batch
    return model(value.to(device))
