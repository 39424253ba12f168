"""Channels set to zero in every tensor that holds them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from autosparse.structure import follow


def trained_looking(model: nn.Module, seed: int = 0) -> None:
    """Norms and biases that are not 0 and 1, so that an error in them shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
        for module in model.modules():
            if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None:
                module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=generator))
                module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=generator))


def kill_half(model: nn.Module, example: Any, seed: int = 0) -> int:
    """Zero half of the channels that may go; gives their number."""
    graph = follow(model, example)
    read = {channel for each in graph.reads for channel in each.ids.tolist()}
    free = sorted(channel for channel in read if channel not in graph.fixed)
    order = torch.randperm(len(free), generator=torch.Generator().manual_seed(seed)).tolist()
    dead = {free[place] for place in order[: len(free) // 2]}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for (key, dim), ids in graph.slices.items():
        places = [place for place, channel in enumerate(ids.tolist()) if channel in dead]
        if places and not key.endswith("running_var"):
            with torch.no_grad():
                tensors[key].index_fill_(dim, torch.tensor(places), 0)
    return len(dead)
