"""Networks that are sparse before anything of the library has seen them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autosparse.methods import METHODS


def prune_three_quarters(model: nn.Module) -> None:
    """Zeros at random places of every weight."""
    for weight in (weight for weight in model.parameters() if weight.dim() > 1):
        mask = torch.rand(weight.shape).flatten().argsort().argsort().reshape(weight.shape) < weight.numel() // 4
        weight.detach().mul_(mask)


def prepare_for(name: str, model: nn.Module) -> nn.Module:
    """The model, with zeros where the method keeps those that there are."""
    if METHODS[name]().traits.needs_zeros:
        prune_three_quarters(model)
    return model


def example_for(name: str, example: Tensor) -> dict[str, Any]:
    """The example input as an option of sparsify, for methods that need one."""
    return {"example_input": example} if METHODS[name]().traits.needs_example else {}
