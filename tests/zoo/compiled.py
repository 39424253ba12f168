"""A member under torch.compile: it trains to the target, and its first steps equal those without compiling."""

from __future__ import annotations

from functools import partial

import torch
import torch._dynamo.utils
import torch._inductor.config

from . import checks
from .cell import Cell
from .run import Run

ROUNDING = 1e-3
COMPARED = 4  # steps: later the two runs drift apart by rounding


def run(cell: Cell) -> None:
    """Train compiled, compare with the same run in plain torch, finalize."""
    cell.check("trains", _train, cell)
    if "trains" not in cell.failures:
        cell.check("target", checks.reaches_target, cell.training, cell.losses)
        cell.check("equals eager", _equals_eager, cell)
        cell.check("finalizes", checks.finalizes, cell.training, *checks.class_and_keys(cell.member))


def _train(cell: Cell) -> str:
    torch._inductor.config.fallback_random = True  # so that dropout draws the same numbers
    backend = cell.facts["backend"] = cell.member.compiles or "inductor"
    cell.training = Run(cell.member, "float32", "SGD", seed=0, wrap=partial(torch.compile, backend=backend))
    cell.losses = cell.training.advance(checks.LAST)
    cell.note_training()
    cell.facts["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return ""


def _equals_eager(cell: Cell) -> str:
    eager = Run(cell.member, "float32", "SGD", seed=0).advance(COMPARED)
    for step, (expected, loss) in enumerate(zip(eager, cell.losses, strict=False)):
        assert abs(loss - expected) <= ROUNDING * abs(expected), f"step {step}: the loss is {loss} instead of {expected}"
    return ""
