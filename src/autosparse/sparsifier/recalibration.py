"""Batch-norm statistics renewed after weights or thresholds were edited outside training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from autosparse.common.batches import feed
from autosparse.common.modes import same_mode_after


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Renew running means and variances as the average over the batches; weights do not change.

    A batch is what the model takes: a tensor, a dict of keyword inputs, or a tuple or list whose first element is the input.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms:
        raise ValueError("the model has no batch norm with running statistics: there is nothing to recalibrate")
    momenta = {norm: norm.momentum for norm in norms}
    saved = {norm: {name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in norms}
    batch_count, finished = 0, False
    try:
        with same_mode_after(model), torch.no_grad():
            model.eval()  # dropout stays off; only the norms learn
            for norm in norms:
                norm.train()
                norm.reset_running_stats()
                norm.momentum = None  # a plain average over all batches
            for batch in batches:
                batch_count += 1
                feed(model, batch)
        finished = batch_count > 0
    finally:
        for norm in norms:
            norm.momentum = momenta[norm]
            if not finished:
                for name, buffer in norm.named_buffers():
                    buffer.copy_(saved[norm][name])
    if not batch_count:
        raise ValueError("batches is empty: the statistics were left as they were")
    return model
