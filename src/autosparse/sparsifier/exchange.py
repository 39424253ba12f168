"""Gradients between ranks: only those of weights that receive one travel. Every rank knows the masks, so no index is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from autosparse.common.words import require
from autosparse.layer import Layer
from autosparse.methods.families.base import Method

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from autosparse.sparsifier.sparsifier import Sparsifier

DTYPES = (None, torch.float16, torch.bfloat16)


@dataclass
class Exchange:
    """A communication hook of DDP, and what it has sent."""

    sp: Sparsifier
    dtype: torch.dtype | None = None
    sent_bytes: int = 0  # handed to the collective operation by this rank
    dense_bytes: int = 0  # what a full exchange in the gradients' own precision would have taken

    def send(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average a bucket of gradients, a `dist.GradBucket`, over the ranks."""
        gradients = [gradient.view(-1) for gradient in bucket.gradients()]
        masks = self._masks(bucket.parameters())
        buffer: Tensor = bucket.buffer().div_(dist.get_world_size())
        whole = all(mask is None for mask in masks)
        pairs = zip(gradients, masks, strict=True)
        parts = (gradient if mask is None else gradient.masked_select(mask) for gradient, mask in pairs)
        packed = buffer if whole else torch.cat([*parts])
        travelling = packed if self.dtype is None else packed.to(self.dtype)
        self.dense_bytes += buffer.numel() * buffer.element_size()
        self.sent_bytes += travelling.numel() * travelling.element_size()

        def unpack(future: torch.futures.Future[Any]) -> Tensor:
            summed = future.value()[0].to(buffer.dtype)
            if whole:
                return buffer if summed is buffer else buffer.copy_(summed)
            sizes = [
                len(gradient) if mask is None else int(mask.sum()) for gradient, mask in zip(gradients, masks, strict=True)
            ]
            for gradient, mask, values in zip(gradients, masks, torch.split(summed, sizes), strict=True):
                gradient.copy_(values) if mask is None else gradient.zero_().masked_scatter_(mask, values)
            return buffer

        work = dist.all_reduce(travelling, async_op=True)
        assert work is not None
        future: torch.futures.Future[Tensor] = work.get_future().then(unpack)
        return future

    def _masks(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Where each parameter of a bucket receives a gradient now, in the order of memory; None: everywhere."""
        layers = {id(layer.stored): layer for layer in self.sp.layers}
        masks = [_receives(layers[id(each)]) if id(each) in layers else None for each in parameters]
        return [None if mask is None else _in_memory_order(mask, each) for mask, each in zip(masks, parameters, strict=True)]


def _receives(layer: Layer) -> Tensor | None:
    parametrization, weight = layer.parametrization, layer.stored.detach()
    match parametrization.gradient_entries:
        case "all":
            return None
        case "active":
            return parametrization.active(weight)
        case _:
            return parametrization.gradient_mask(weight)


def _in_memory_order(mask: Tensor, parameter: Tensor) -> Tensor:
    """The mask as DDP lays gradients out: as the parameter lies in memory, or in the order of its dimensions."""
    order = sorted(range(parameter.dim()), key=parameter.stride().__getitem__, reverse=True)
    return (mask.permute(order) if parameter.permute(order).is_contiguous() else mask).reshape(-1)


def has_penalty(method: Method) -> bool:
    """Whether pruned weights receive a gradient besides that of the loss."""
    return type(method).penalty is not Method.penalty


def exchange_through(ddp: DistributedDataParallel, sp: Sparsifier, dtype: torch.dtype | None) -> Exchange:
    """Register the hook on a model that DDP has wrapped."""
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(f"communication_hook takes the model that DistributedDataParallel wraps, got {type(ddp).__name__}")
    if ddp.module is not sp.model:
        raise ValueError("this DDP wraps another model than the one that is sparsified")
    if has_penalty(sp.method):
        raise ValueError(
            f"{sp.method.about.name} has a penalty, which gives pruned weights a gradient as well: they travel whole, "
            "leave the hook out"
        )
    require(dtype in DTYPES, "dtype", dtype, "None (as the gradients), torch.float16 or torch.bfloat16")
    exchange = Exchange(sp, dtype)
    # unannotated: DDP compares annotations with its own classes, and ours are strings
    ddp.register_comm_hook(exchange, lambda state, bucket: state.send(bucket))
    return exchange
