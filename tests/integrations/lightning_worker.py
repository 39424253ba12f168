"""One of the two processes of test_lightning.py's DDP run: Lightning starts the second by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint

from .lightning_parts import Net, SparseTraining, loader, trainer
from .lightning_resume import METHODS


def run(name: str, rank_seed: bool, path: Any = None, *callbacks: Any) -> dict[str, Any]:
    sparse = SparseTraining(METHODS[name], guard_every=1)
    options = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "accumulate_grad_batches": 2}
    made = trainer(sparse, *callbacks, **options)
    net = Net(seed=made.global_rank if rank_seed else 0)  # DDP gives all ranks the weights of the first
    made.fit(net, loader(), ckpt_path=path)
    return {"model": net.state_dict(), "sp": sparse.sparsifier.state_dict(), "rank": made.global_rank, "ranks": made.world_size}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    keep = ModelCheckpoint(folder / "checkpoints", filename="{epoch}", save_top_k=-1)
    found = {name: run(name, True, None, *([keep] if name == "autotune" else [])) for name in METHODS}
    found["resumed"] = run("autotune", True, folder / "checkpoints" / "epoch=1.ckpt")
    torch.save(found, folder / f"rank{found['target']['rank']}.pt")
    if dist.is_initialized():
        dist.barrier()  # a process that leaves early can abort the others
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
