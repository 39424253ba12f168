"""Cases of test_resume.py; as a script it continues saved runs in a process of its own."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from autosparse import STR, AutoSparse, AutoTune, SparsityWarning
from autosparse.methods.families.base import Method
from autosparse.models import small_conv, small_transformer

from ..states import untimed
from .training import Run, begin

IMAGE = (1, 8, 8)
STEPS = 5  # an epoch
EPOCHS = 4


@dataclass(frozen=True)
class Case:
    model: str
    method: Method
    optimizer: str = "sgd"
    cut: int = 10  # steps before the interruption
    close_last: bool = True  # whether the epoch that ends at the cut was closed before
    density_floor: float = 0.01

    def build(self, seed: int) -> Run:
        torch.manual_seed(seed)
        net: nn.Module
        if self.model == "conv":
            net = small_conv(classes=3, width=4)
        else:
            net = small_transformer(classes=3, image_size=8, rows=2, size=16, blocks=1, heads=2, feed_forward=32)
        # a guard that looks at every step and must act, so that its memory matters too
        return begin(
            net, self.method, IMAGE, self.optimizer, epochs=EPOCHS, steps=STEPS, guard_every=1, density_floor=self.density_floor
        )

    def finish(self, run: Run) -> None:
        """From the cut to the end of the run; an epoch that was left open is closed first."""
        if run.sp.step == self.cut and not self.close_last:
            run.sp.end_epoch(loss=1.0)
        run.advance(EPOCHS * STEPS - run.sp.step)


_TARGET = AutoSparse(alpha=0.7, target_sparsity=0.8)
_TUNED = AutoSparse(autotune=AutoTune(epochs=3, reference=(1.0, 1.1, 1.2)))
_BACK = AutoSparse(alpha=0.7, backward_sparsity=0.3, dense_grad_every=3, start_sparsity=0.5)
CASES = {
    "conv, target, SGD": Case("conv", _TARGET, density_floor=0.15),
    "conv, target, SGD, mid-epoch": Case("conv", _TARGET, cut=7, density_floor=0.15),
    "conv, target, AdamW": Case("conv", _TARGET, "adamw"),
    "conv, autotune, SGD": Case("conv", _TUNED),
    "conv, autotune, AdamW, mid-epoch": Case("conv", _TUNED, "adamw", cut=8),
    "conv, autotune, before the epoch is closed": Case("conv", _TUNED, close_last=False),
    "conv, first epoch": Case("conv", _TUNED, cut=3),
    "conv, back-sparse, SGD, mid-epoch": Case("conv", _BACK, cut=8),
    "conv, channels and target": Case("conv", STR(threshold="channel", target_sparsity=0.7)),
    "conv, shared and target, mid-epoch": Case("conv", AutoSparse(threshold="shared", target_sparsity=0.7), cut=11),
    "conv, STR, AdamW, mid-epoch": Case("conv", STR(start_sparsity=0.5, g="exp"), "adamw", cut=9),
    "conv, before the first step": Case("conv", _TARGET, cut=0),
    "transformer, target, SGD": Case("transformer", _TARGET, density_floor=0.15),
    "transformer, target, AdamW, mid-epoch": Case("transformer", _TARGET, "adamw", cut=13, density_floor=0.15),
    "transformer, autotune, AdamW": Case("transformer", _TUNED, "adamw"),
    "transformer, back-sparse, AdamW, mid-epoch": Case("transformer", _BACK, "adamw", cut=7),
    "transformer, channels, AdamW": Case("transformer", AutoSparse(threshold="channel", start_sparsity=0.5), "adamw"),
    "transformer, shared": Case("transformer", STR(threshold="shared", start_sparsity=0.5)),
    "transformer, STR, SGD, mid-epoch": Case("transformer", STR(start_sparsity=0.5), cut=12),
}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error", SparsityWarning)
    for number, case in enumerate(CASES.values()):
        run = case.build(seed=1000 + number)  # other weights than the run had: all must come from the file
        run.load(torch.load(folder / f"{number}.pt", weights_only=True))
        case.finish(run)
        torch.save({**run.state(), "report": untimed(run.sp.report())}, folder / f"{number}.done.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
