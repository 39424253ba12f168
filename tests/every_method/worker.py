"""The processes of test_processes.py: `unbroken` trains, `resume` continues saved runs, a rank is one of two together."""

from __future__ import annotations

import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autosparse

from ..states import untimed
from .running import COMBINATIONS, begin, counts, resumed, trajectory
from .settings import BATCH, STEPS, TOTAL

WORLD = 2
UNTIL = TOTAL - STEPS - 2  # past a change of rounds, in the middle of an epoch
# nets and optimizers: those of the quick tests, and those that `make slow` tries
ALONE = {"few": (("conv", "sgd"), ("transformer", "adamw")), "all": COMBINATIONS}
TOGETHER = {"few": (("transformer", "adamw"),), "all": (("conv", "sgd"), ("transformer", "adamw"))}


def unbroken(folder: Path, tried: str) -> None:
    """Train every run from its start to its end, and keep what it was where it will be cut."""
    cuts: dict[str, Any] = {}
    ended: dict[str, Any] = {}
    for name in autosparse.list_methods():
        cuts[name] = {}
        for net, optimizer in ALONE[tried]:
            ran = trajectory(name, net, optimizer)
            cuts[name][f"{net}, {optimizer}"] = ran.cut
            ended[f"{name}, {net}, {optimizer}"] = {**ran.run.state(), "report": untimed(ran.run.sp.report())}
    torch.save(cuts, folder / "cut.pt")
    torch.save(ended, folder / "unbroken.pt")


def resume(folder: Path, tried: str) -> None:
    """Continue every run to its end."""
    saved = torch.load(folder / "cut.pt", weights_only=True)
    ended = {}
    for name in saved:
        for net, optimizer in ALONE[tried]:
            run = resumed(name, net, optimizer, saved[name][f"{net}, {optimizer}"])
            run.advance(TOTAL)
            ended[f"{name}, {net}, {optimizer}"] = {**run.state(), "report": untimed(run.sp.report())}
    torch.save(ended, folder / "ended.pt")


def parallel(model: nn.Module, net: str) -> nn.Module:
    # without the broadcast of buffers a method has to keep its masks equal by itself
    return DistributedDataParallel(model, broadcast_buffers=net == "conv")


def rank(number: int, folder: Path, tried: str) -> None:
    """Train every method on this rank's half of each batch, from weights that differ until they are wrapped."""
    store = dist.FileStore(str(folder / "store"), WORLD)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=number, world_size=WORLD, timeout=timedelta(seconds=120))
    half = BATCH // WORLD
    found: dict[str, Any] = {}
    for name in autosparse.list_methods():
        for net, optimizer in TOGETHER[tried]:
            run = begin(
                name,
                net,
                optimizer,
                seed=number,
                wrap=lambda model, net=net: parallel(model, net),  # type: ignore[misc]
                rows=slice(number * half, number * half + half),
            )
            run.score()
            seen: list[list[int]] = []
            run.advance(UNTIL, lambda run=run, seen=seen: seen.append(counts(run)))  # type: ignore[misc]
            state = run.state()
            # batch-norm statistics are each rank's own
            state["model"] = {key: value for key, value in state["model"].items() if "running" not in key}
            numbers = {"counts": seen, "sparsity": run.sp.sparsity(), "report": untimed(run.sp.report())}
            found[f"{name}, {net}, {optimizer}"] = {**state, **numbers}
    torch.save(found, folder / f"rank{number}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("error", autosparse.SparsityWarning)
    part, folder, tried = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if part in ("unbroken", "resume"):
        {"unbroken": unbroken, "resume": resume}[part](folder, tried)
    else:
        rank(int(part), folder, tried)
