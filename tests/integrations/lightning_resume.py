"""Runs of test_lightning.py that are killed; as a script it starts each in a process of its own and kills it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from autosparse import AutoSparse, AutoTune

from .lightning_parts import BATCHES, EPOCHS, Net, ResumableLoader, SparseTraining, fit, loader

METHODS = {
    "target": AutoSparse(target_sparsity=0.7),
    "autotune": AutoSparse(autotune=AutoTune(epochs=3, reference=(1.0, 1.1, 1.2)), start_sparsity=0.5),
}
CUTS: dict[str, dict[str, Any]] = {
    "end of an epoch": {"every_n_epochs": 1},
    "inside an epoch": {"every_n_train_steps": 8},
    "last batch of an epoch": {"every_n_train_steps": BATCHES},
    "after validation": {"every_n_epochs": 1, "save_on_train_epoch_end": False},
}
CASES = [(method, cut) for method in METHODS for cut in CUTS]


class ValidatedNet(Net):
    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def val_dataloader(self) -> Any:
        return loader()


class Kill(Callback):
    """The end of a process that had no time to clean up."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.fit_loop.total_batch_idx == self.batch:
            os.kill(os.getpid(), signal.SIGKILL)


def run(method: str, cut: str, *callbacks: Any, seed: int = 0, path: Any = None) -> dict[str, Any]:
    """Everything that a run leaves behind."""
    kind = ValidatedNet if "validation" in cut else Net
    module = kind(seed, lambda optimizer: CosineAnnealingLR(optimizer, EPOCHS))
    sparse = SparseTraining(METHODS[method], guard_every=1)
    made = fit(sparse, module, *callbacks, path=path, train=ResumableLoader(), num_sanity_val_steps=0)
    return {"model": module.state_dict(), "sp": sparse.sparsifier.state_dict(), "optimizer": made.optimizers[0].state_dict()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for number, (method, cut) in enumerate(CASES):
        # autograd does not work in a fork of a process that has used it: this one never does
        child = os.fork()
        if child == 0:
            keep = ModelCheckpoint(folder / str(number), filename="{epoch}-{step}", save_top_k=-1, **CUTS[cut])
            run(method, cut, keep, Kill(10 if cut == "inside an epoch" else 15))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (folder / f"{number}.status").write_text(str(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
