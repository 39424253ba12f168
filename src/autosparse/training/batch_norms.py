"""Batch norms of a network that several processes train: statistics of each process's own samples, or of all of them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from autosparse.common.warnings import warn
from autosparse.recipes.recipe import Recipe
from autosparse.training.processes import Processes


def check_device(recipe: Recipe, device: torch.device) -> None:
    """Refuse shared statistics where torch cannot compute them, before any work."""
    if recipe.train.sync_batch_norm and device.type != "cuda":
        raise ValueError(
            f"train.sync_batch_norm shares statistics between GPUs, and this run trains on {device.type}: torch has no such "
            "batch norm for it. Leave the key out; each process then normalises with its own samples"
        )


def prepared(model: nn.Module, recipe: Recipe, processes: Processes) -> nn.Module:
    """The model with norms that share statistics if the recipe asks for it; otherwise the user is told that they differ."""
    if processes.world == 1 or not any(isinstance(module, _BatchNorm) for module in model.modules()):
        return model
    if recipe.train.sync_batch_norm:
        shared: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return shared
    if processes.leads:
        warn(
            f"{processes.world} processes train a network with batch norms: each normalises with the statistics of its own "
            "part of a batch, so the result differs from that of one process with the same batch size. "
            "On GPUs, train.sync_batch_norm=true shares the statistics"
        )
    return model
