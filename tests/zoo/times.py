"""Step time and deployed time over plain torch at published sizes: python -m tests.zoo.times [--only NAME] [--rounds 7]

Alone on the machine; what is measured is kept in build/zoo/times.json and skipped.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import autosparse
from autosparse import AutoSparse
from autosparse.common.files import whole_file
from autosparse.common.tables import Table
from autosparse.common.turns import clock_for, take_turns

from .member import Task
from .published import PUBLISHED
from .results import ROOT

WORKING = ROOT / "build" / "zoo" / "times.json"
RAMP, TARGET = 0.3, 0.9  # zeros at the start of a run, and at its end
STEPS_BEFORE = 3  # the planner measures in the first of them


def plain_step(task: Task) -> Callable[[], None]:
    return partial(_step, task, torch.optim.SGD(task.model.parameters(), lr=1e-4, momentum=0.9))


def sparse_step(task: Task, sparsity: float) -> tuple[Callable[[], None], autosparse.Sparsifier]:
    """Steps at one sparsity, which a tiny learning rate leaves as it is; alpha is above 0 during the ramp only."""
    method = AutoSparse(alpha=0.75 if sparsity == RAMP else 0.0, schedule="constant", start_sparsity=sparsity)
    sp = autosparse.sparsify(task.model, method, epochs=100, steps_per_epoch=1000)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=1e-8), lr=1e-4, momentum=0.9)
    sp.bind(optimizer)
    return partial(_step, task, optimizer), sp


def _step(task: Task, optimizer: torch.optim.Optimizer) -> None:
    loss = task.training_loss(task.model)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def measure(build: Callable[[], Task], rounds: int) -> dict[str, Any]:
    """Medians in milliseconds."""
    clock = clock_for(torch.get_num_threads())
    (ramp, _), (target, sp) = sparse_step(build(), RAMP), sparse_step(trained := build(), TARGET)
    steps = {"plain step": plain_step(build()), "step in the ramp": ramp, "step at the target": target}
    for step in steps.values():
        for _ in range(STEPS_BEFORE):
            step()
    times = take_turns(steps, rounds, clock=clock)
    compute = sp.report().compute
    model = sp.finalize().eval()
    deployed = autosparse.deploy(model, trained.named or trained.inputs)
    with torch.no_grad():
        calls = {
            "plain call": lambda: model(*trained.inputs, **trained.named),
            "deployed call": lambda: deployed(*trained.inputs, **trained.named),
        }
        times |= take_turns(calls, rounds, clock=clock)
    return {"compute": compute, "notes": deployed.notes, **{name: 1000 * median(all_) for name, all_ in times.items()}}


def table(results: dict[str, Any]) -> str:
    rows = [
        (
            name, round(times["plain step"]), f"{times['step in the ramp'] / times['plain step']:.2f}",
            f"{times['step at the target'] / times['plain step']:.2f}", round(times["plain call"], 1),
            f"{times['deployed call'] / times['plain call']:.2f}",
        )
        for name, times in results.items()
    ]  # fmt: skip
    headings = ("network", "plain step, ms", f"at {RAMP:.0%} zeros", f"at {TARGET:.0%}", "plain call, ms", "deployed")
    return Table(headings=headings, rows=rows, title="over plain torch: below 1 is faster").text()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.times", description=__doc__)
    parser.add_argument("--only", action="append", choices=PUBLISHED, help="only this network")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=WORKING)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    results = json.loads(options.results.read_text(encoding="utf-8")) if options.results.exists() else {}
    for name in options.only or PUBLISHED:
        if name not in results:
            torch.manual_seed(0)
            results[name] = measure(PUBLISHED[name], options.rounds)
            with whole_file(options.results) as unfinished:
                unfinished.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
