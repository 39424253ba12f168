"""A member in two processes (DDP over gloo), each with a batch of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import checks
from .cell import Cell
from .members import find
from .run import Run

WORLD = 2


def run(cell: Cell) -> None:
    """Both ranks stay bit-identical, reach the target and finalize."""
    cell.check("trains", _train, cell)
    if "trains" not in cell.failures:
        cell.check("target", _reaches_target, cell.ranks)
        cell.check("ranks agree", _ranks_agree, cell.ranks)
        cell.check("finalizes", _finalizes, cell)


def _train(cell: Cell) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={WORLD}", "--master-port=0"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "-m", "tests.zoo.processes"]
        done = subprocess.run(
            [*command, cell.member.library, cell.member.name, folder], capture_output=True, text=True, env={**os.environ}
        )
        files = [Path(folder) / f"{rank}.pt" for rank in range(WORLD)]
        # torch's gloo processes sometimes abort while the interpreter shuts down, after all work is written
        assert all(file.exists() for file in files), done.stderr[-1500:]
        cell.ranks = [torch.load(file, weights_only=True) for file in files]
    first = cell.ranks[0]
    cell.facts |= {"losses": [first["losses"][0], first["losses"][-1]], "sparsity": first["sparsity"]}
    return ""


def _reaches_target(ranks: list[dict[str, Any]]) -> str:
    for rank in ranks:
        checks.assert_target(rank["sparsity"], rank["losses"])
    return ""


def _ranks_agree(ranks: list[dict[str, Any]]) -> str:
    first, second = (rank["parameters"] for rank in ranks)
    differing = [name for name, value in first.items() if not torch.equal(value, second[name])]
    assert first.keys() == second.keys()
    assert not differing, f"{len(differing)} parameters differ between the ranks, {differing[0]} first"
    return ""


def _finalizes(cell: Cell) -> str:
    _, keys = checks.class_and_keys(cell.member)
    for rank in cell.ranks:
        assert rank["keys"] == keys, "the keys of the state differ from the plain model's"
    return ""


def work(library: str, name: str, folder: str) -> None:
    """One rank: other weights until DDP gives it those of rank 0."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    training = Run(find(library, name), "float32", "SGD", seed=rank, wrap=DistributedDataParallel)
    losses = training.advance(checks.LAST)
    parameters = {name: value.detach().clone() for name, value in training.model.named_parameters()}
    seen = {"losses": losses, "sparsity": training.sp.sparsity(), "parameters": parameters}
    seen["keys"] = list(training.sp.finalize().state_dict())
    torch.save(seen, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    work(*sys.argv[1:])
