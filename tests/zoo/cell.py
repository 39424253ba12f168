"""One cell of the zoo, as a process of its own: python -m tests.zoo.cell LIBRARY MEMBER VARIANT RESULT.json"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import checks
from .member import Member
from .members import find
from .plan import COMPILED, PROCESSES
from .run import Run

VARIANTS = {
    "float32 SGD": ("float32", "SGD"),
    "bfloat16 AdamW": ("bfloat16", "AdamW"),
    "float32 AdamW": ("float32", "AdamW"),
    "bfloat16 SGD": ("bfloat16", "SGD"),
}


class Cell:
    """Collects what each check says; a check that fails does not keep the others from running."""

    def __init__(self, member: Member, variant: str) -> None:
        self.member, self.variant = member, variant
        self.begin = sum(os.times()[:4])
        self.checks: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.facts: dict[str, Any] = {}
        self.training: Run
        self.losses: list[float]
        self.ranks: list[dict[str, Any]]

    def check(self, name: str, action: Callable[..., str], *arguments: Any) -> None:
        begin = time.process_time()
        try:
            self.checks[name] = action(*arguments)
        except Exception as error:
            self.failures[name] = f"{type(error).__name__}: {str(error)[:600]}"
            traceback.print_exc()
        self.facts.setdefault("seconds_of", {})[name] = round(time.process_time() - begin, 1)

    def run(self, export: bool = True) -> None:
        """Train, resume, compare, finalize, deploy, export."""
        precision, optimizer = VARIANTS[self.variant]
        self.check("trains", self._train, precision, optimizer)
        if "trains" in self.failures:
            return
        self.check("target", checks.reaches_target, self.training, self.losses)
        self.facts |= checks.kernels_in_use(self.training)
        self.check("resumes", self._resume, precision, optimizer)
        self.check("equals dense", checks.equals_dense, self.training)
        self.check("finalizes", checks.finalizes, self.training, *checks.class_and_keys(self.member))
        if "finalizes" in self.failures:
            return
        self.check("deploys", checks.deploys, self.training.model, self.training.task)
        if export and self.variant == "float32 SGD":
            with tempfile.TemporaryDirectory() as folder:
                path = str(Path(folder) / "model.onnx")
                self.check("exports", checks.exports, self.training.model, self.training.task, self.member.build(), path)

    def _train(self, precision: str, optimizer: str) -> str:
        self.training = Run(self.member, precision, optimizer, seed=0)
        self.losses = self.training.advance(checks.SAVED_AT)
        self.checkpoint = self.training.checkpoint()
        self.losses += self.training.advance(checks.COMPARED_AT)
        self.midway = checks.fingerprint(self.training)
        self.losses += self.training.advance(checks.LAST)
        self.note_training()
        return ""

    def note_training(self) -> None:
        self.facts["weights"] = sum(layer.numel for layer in self.training.sp.layers)
        self.facts["losses"] = [self.losses[0], self.losses[-1]]
        self.facts["sparsity"] = self.training.sp.sparsity()

    def _resume(self, precision: str, optimizer: str) -> str:
        # the same batch, other weights: all of them must come from the checkpoint
        resumed = Run(self.member, precision, optimizer, seed=0)
        for parameter in resumed.model.parameters():
            parameter.data.mul_(0.5)
        return checks.resumes_exactly(self.midway, self.losses, resumed, self.checkpoint)

    def record(self) -> dict[str, Any]:
        return {
            "member": self.member.name,
            "library": self.member.library,
            "family": self.member.family,
            "variant": self.variant,
            "green": not self.failures,
            "remarks": {name: remark for name, remark in self.checks.items() if remark},
            "failures": self.failures,
            "seconds": round(sum(os.times()[:4]) - self.begin, 1),  # of processor time, that of ended children included
            **self.facts,
        }


def run_of(variant: str) -> Callable[[Cell], None]:
    if variant in VARIANTS:
        return Cell.run
    from . import compiled, processes

    return {COMPILED: compiled.run, PROCESSES: processes.run}[variant]


def run_and_write(library: str, name: str, variant: str, result: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cell = Cell(find(library, name), variant)
    run_of(variant)(cell)
    Path(result).write_text(json.dumps(cell.record(), indent=1), encoding="utf-8")


if __name__ == "__main__":
    run_and_write(*sys.argv[1:])
