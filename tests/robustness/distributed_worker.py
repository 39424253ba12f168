"""One rank of test_distributed.py: runs everything in one process group and saves what it saw."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import autosparse
from autosparse import ST3, ST3GA, STR, AutoSparse, AutoTune, Feather, FeatherGA
from autosparse.methods.families.base import Method

from ..states import untimed
from .training import Run, conv_net, make_optimizer, mlp

WORLD = 2
IMAGE = (1, 8, 8)
EPOCHS, STEPS = 3, 4
REFERENCE = (1.5, 1.5)
LOSSES = {0: (1.0, 0.5, 1.0), 1: (3.0, 1.9, 1.0)}  # of both ranks: their means lie above, then below the reference


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    method: Method
    optimizer: str = "sgd"

    def start(self, seed: int, wrap: Callable[[nn.Module], nn.Module] | None = None, rows: slice = slice(None)) -> Run:
        """The order of DESIGN: sparsify, wrap, optimizer, bind."""
        torch.manual_seed(seed)
        model = self.build()
        sp = autosparse.sparsify(model, self.method, epochs=EPOCHS, steps_per_epoch=STEPS, guard_every=1, density_floor=0.25)
        forward = wrap(model) if wrap else None
        opt = make_optimizer(self.optimizer, sp.param_groups(weight_decay=1e-2))
        sp.bind(opt)
        return Run(model, sp, opt, self.shape, forward, rows)


def wide() -> nn.Module:
    return mlp().double()


CASES = {
    "target": Case(wide, (10,), AutoSparse(alpha=0.6, target_sparsity=0.7, dense_grad_every=2)),
    "target, AdamW": Case(wide, (10,), AutoSparse(alpha=0.6, target_sparsity=0.7), "adamw"),
    "channels, backward sparsity": Case(
        wide, (10,), AutoSparse(alpha=0.6, threshold="channel", backward_sparsity=0.3, start_sparsity=0.5)
    ),
    "shared, target": Case(wide, (10,), STR(threshold="shared", target_sparsity=0.6)),
    "STR, exp": Case(wide, (10,), STR(g="exp", start_sparsity=0.8)),  # beyond the floor: the guard acts
    "ST-3, sigma": Case(wide, (10,), ST3(target_sparsity=0.6, sigma=True)),
    "ST-3, annealed": Case(wide, (10,), ST3GA(target_sparsity=0.6)),
    "Feather": Case(wide, (10,), Feather(target_sparsity=0.6)),
    "Feather, annealed": Case(wide, (10,), FeatherGA(target_sparsity=0.6)),
    "convolutions, batch norm": Case(conv_net, IMAGE, AutoSparse(alpha=0.6, target_sparsity=0.7)),
}
SHARDED = tuple(name for name in CASES if "batch norm" not in name)


def rows_of(rank: int) -> slice:
    return slice(4 * rank, 4 * rank + 4)


def seen(run: Run) -> dict[str, Any]:
    weights = {name: value for name, value in run.model.state_dict().items() if "running" not in name}
    return {
        "model": weights,
        "sp": run.sp.state_dict(),
        "alpha": run.sp.alpha,
        "sparsity": run.sp.sparsity(),
        "report": untimed(run.sp.report()),
        "gates": [layer.parametrization.gate.item() for layer in run.sp.layers],
    }


def refusal(action: Callable[[], Any]) -> str:
    try:
        action()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def run_ddp(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        # every rank has other weights until DDP gives it those of rank 0
        run = case.start(seed=rank, wrap=DistributedDataParallel, rows=rows_of(rank))
        run.advance(EPOCHS * STEPS)
        found[name] = seen(run)
    return found


def run_autotune(rank: int) -> dict[str, Any]:
    method = AutoSparse(autotune=AutoTune(epochs=2, reference=REFERENCE))
    run = Case(wide, (10,), method).start(seed=rank, wrap=DistributedDataParallel, rows=rows_of(rank))
    alphas = []
    for loss in LOSSES[rank]:
        for _ in range(STEPS):
            run.step()
        run.sp.end_epoch(loss=loss)
        alphas.append(run.sp.alpha)
    history = [entry["loss"] for entry in run.sp.history]
    run.sp.restart()
    run.step()
    nan = refusal(lambda: run.sp.end_epoch(loss=float("nan") if rank else 1.0))
    return {"alphas": alphas, "losses": history, "nan": nan, "epoch": run.sp.epoch}


def run_refusals(rank: int) -> dict[str, str]:
    def again(model: nn.Module) -> str:
        return refusal(lambda: autosparse.sparsify(model, STR(), epochs=1, steps_per_epoch=1))

    other = autosparse.sparsify(mlp(), STR(start_sparsity=0.5 if rank else 0.4), epochs=1, steps_per_epoch=1)
    opt = make_optimizer("sgd", other.param_groups(weight_decay=1e-2))
    return {
        "DDP": again(DistributedDataParallel(mlp())),
        "fully_shard": again(shard(mlp())),
        "other settings": refusal(lambda: other.bind(opt)),
    }


def shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (WORLD,))
    for module in model.children():
        if isinstance(module, nn.Linear):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def run_fsdp(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in SHARDED:
        run = CASES[name].start(seed=0, wrap=shard, rows=rows_of(rank))
        run.advance(EPOCHS * STEPS)
        found[name] = {
            "dense": run.sp.dense_state_dict(),
            "sp": run.sp.state_dict(),
            "sparsity": run.sp.sparsity(),
            "zeros": [layer.zeros for layer in run.sp.report().layers],
            "kinds": [layer.kind for layer in run.sp.report().layers],
            "finalize": refusal(run.sp.finalize),
            "plain": run.sp.finalize(into=CASES[name].build()).state_dict(),
            "sharded": hasattr(run.sp.layers[0].stored, "full_tensor"),
        }
    return found


def run_fsdp_resume(rank: int) -> dict[str, Any]:
    """Full states from one sharded run into a new one, half-way."""
    case, options = CASES["target, AdamW"], StateDictOptions(full_state_dict=True)
    first = case.start(seed=0, wrap=shard, rows=rows_of(rank))
    first.advance(6)
    weights, moments = copy.deepcopy(get_state_dict(first.model, first.opt, options=options))
    state = first.sp.state_dict()
    second = case.start(seed=1, wrap=shard, rows=rows_of(rank))
    everywhere = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_state_dict(second.model, second.opt, model_state_dict=weights, optim_state_dict=moments, options=everywhere)
    held = [state]
    dist.broadcast_object_list(held, src=0)
    second.sp.load_state_dict(held[0])
    for run in (first, second):
        run.advance(6)
    return {
        "dense": [run.sp.dense_state_dict() for run in (first, second)],
        "states": [run.sp.state_dict() for run in (first, second)],
    }


def run_fsdp_meta(rank: int) -> dict[str, Any]:
    """A model that never exists whole: built on meta, sharded, then given its weights."""
    torch.manual_seed(0)
    plain = wide().state_dict()
    with torch.device("meta"):
        model = wide()
    method = AutoSparse(alpha=0.6, start_sparsity=0.5)
    sp = autosparse.sparsify(model, method, epochs=EPOCHS, steps_per_epoch=STEPS)
    shard(model)
    model.to_empty(device="cpu")
    sp.load_dense(plain)
    opt = make_optimizer("sgd", sp.param_groups(weight_decay=1e-2))
    sp.bind(opt)
    start = sp.sparsity()
    Run(model, sp, opt, (10,), None, rows_of(rank)).advance(STEPS)
    return {"start": start, "end": sp.sparsity(), "gate": sp.layers[0].parametrization.gate.item(), "alpha": sp.alpha}


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=240))
    parts = (run_ddp, run_autotune, run_refusals, run_fsdp, run_fsdp_resume, run_fsdp_meta)
    found = {part.__name__: part(rank) for part in parts}
    torch.save(found, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
