"""One process or many: who this one is, how the ranks agree, how a model is spread over them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from autosparse.sparsifier import Sparsifier
from autosparse.sparsifier.exchange import has_penalty

Value = TypeVar("Value")
SETTLE_SECONDS = 0.5  # gloo's threads may abort an interpreter that leaves while they still end


@dataclass(frozen=True)
class Processes:
    """This process among those that train together."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def once(self, work: Callable[[], Value]) -> Value:
        """The result of rank 0's `work`, on all ranks; its error is raised on all, so that none is left waiting."""
        if self.world == 1:
            return work()
        outcome: list[Any] = [None, None]
        if self.leads:
            try:
                outcome[0] = work()
            except (ValueError, RuntimeError, OSError) as error:
                outcome[1] = (type(error), str(error))
        dist.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            kind, message = outcome[1]
            raise kind(message)
        return outcome[0]  # type: ignore[no-any-return]

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, on all."""
        if self.world == 1:
            return [value]
        values: list[Value] = [value] * self.world
        dist.all_gather_object(values, value)
        return values

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether any rank says so."""
        if self.world == 1:
            return flag
        return bool(self.total(torch.tensor(float(flag), device=device)) > 0)

    def share_buffers(self, model: nn.Module) -> None:
        """Batch-norm statistics of rank 0 for all, so that every rank validates, and a sharded checkpoint holds, the same."""
        if self.world > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(device_type: str) -> Iterator[Processes]:
    """The process group that torchrun describes, or this process alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes()
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device_type == "cuda":
        torch.cuda.set_device(local)
    begins_here = not dist.is_initialized()
    if begins_here:
        from autosparse.training.rendezvous import meet  # torch can be built without what it needs

        store, rank, world = meet()
        dist.init_process_group("nccl" if device_type == "cuda" else "gloo", store=store, rank=rank, world_size=world)
    yield Processes(dist.get_rank(), dist.get_world_size(), local)
    if begins_here:  # after an error the others are not waited for: torchrun ends them
        dist.barrier()
        dist.destroy_process_group()
        time.sleep(SETTLE_SECONDS)


def spread(model: nn.Module, strategy: str, processes: Processes, device: torch.device) -> nn.Module:
    """The model as all ranks train it: replicated by DDP, or sharded in place by FSDP2."""
    if strategy == "fsdp" and processes.world > 1:
        from torch.distributed.fsdp import fully_shard

        for block in _blocks(model):
            fully_shard(block)
        fully_shard(model)
        return model
    if processes.world > 1:
        places = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=places)
    return model


def exchange_little(runner: nn.Module, sp: Sparsifier | None, device: torch.device, precision: str) -> None:
    """Let replicas exchange only the gradients of weights that receive one; elsewhere packing would wait for the host."""
    if sp is None or device.type != "cpu" or has_penalty(sp.method):
        return
    if isinstance(runner, nn.parallel.DistributedDataParallel):
        sp.communication_hook(runner, torch.bfloat16 if precision == "bfloat16" else None)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model, gathered one at a time; a block that shares a parameter stays with the root."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    repeated = [block for child in model.children() if isinstance(child, nn.ModuleList | nn.Sequential) for block in child]
    unshared = [block for block in repeated if all(owners[id(parameter)] == 1 for parameter in block.parameters())]
    return [block for block in unshared if any(True for _ in block.parameters())]
