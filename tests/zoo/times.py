"""Step time, memory and deployed time over plain torch at published sizes: python -m tests.zoo.times [--only NAME] [--rounds 7]

Alone on the machine; what is measured is kept in build/zoo/times.json and skipped. --precision bfloat16 trains under autocast.
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
from autosparse.bench.allocations import peak_of
from autosparse.common.files import whole_file
from autosparse.common.processor import cpu_model
from autosparse.common.tables import Table
from autosparse.common.turns import clock_for, take_turns

from .member import Task
from .published import PUBLISHED
from .results import ROOT

WORKING = ROOT / "build" / "zoo" / "times.json"
RAMP, TARGET = 0.3, 0.9  # zeros at the start of a run, and at its end
DECAY = 1e-8  # on both sides: it is a pass over all weights
STEPS_BEFORE = 3  # the planner measures in the first of them


def plain_step(task: Task, precision: str) -> Callable[[], None]:
    return partial(_step, task, torch.optim.SGD(task.model.parameters(), lr=1e-4, momentum=0.9, weight_decay=DECAY), precision)


def sparse_step(task: Task, precision: str, sparsity: float) -> tuple[Callable[[], None], autosparse.Sparsifier]:
    """Steps at one sparsity, which a tiny learning rate leaves as it is; alpha is above 0 during the ramp only."""
    method = AutoSparse(alpha=0.75 if sparsity == RAMP else 0.0, schedule="constant", start_sparsity=sparsity)
    sp = autosparse.sparsify(task.model, method, epochs=100, steps_per_epoch=1000)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=DECAY), lr=1e-4, momentum=0.9)
    sp.bind(optimizer)
    return partial(_step, task, optimizer, precision), sp


def _step(task: Task, optimizer: torch.optim.Optimizer, precision: str) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        loss = task.training_loss(task.model)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def measure(build: Callable[[], Task], precision: str, rounds: int) -> dict[str, Any]:
    """Medians in milliseconds."""
    clock = clock_for(torch.get_num_threads())
    (ramp, _), (target, sp) = (sparse_step(build(), precision, RAMP), sparse_step(trained := build(), precision, TARGET))
    steps = {"plain step": plain_step(build(), precision), "step in the ramp": ramp, "step at the target": target}
    for step in steps.values():
        for _ in range(STEPS_BEFORE):
            step()
    times = take_turns(steps, rounds, clock=clock)
    facts = {"compute": sp.report().compute, "weights": sum(layer.numel for layer in sp.layers)}
    del steps, ramp
    if precision == "float32":
        model = sp.finalize().eval()
        deployed = autosparse.deploy(model, trained.named or trained.inputs)
        facts["notes"] = deployed.notes
        with torch.no_grad():
            calls = {
                "plain call": lambda: model(*trained.inputs, **trained.named),
                "deployed call": lambda: deployed(*trained.inputs, **trained.named),
            }
            times |= take_turns(calls, rounds, clock=clock)
    return facts | {name: 1000 * median(all_) for name, all_ in times.items()}


def memory(build: Callable[[], Task], precision: str) -> dict[str, int]:
    """The most bytes of tensors from the network's making to its third step."""

    def train(sparsity: float | None) -> object:
        task = build()
        step, sp = (plain_step(task, precision), None) if sparsity is None else sparse_step(task, precision, sparsity)
        for _ in range(STEPS_BEFORE):
            step()
        return step, sp

    sides = {"plain bytes": None, "bytes in the ramp": RAMP, "bytes at the target": TARGET}
    return {name: peak_of(partial(train, sparsity)) for name, sparsity in sides.items()}


def table(results: dict[str, Any]) -> str:
    times = ("plain step, ms", f"at {RAMP:.0%} zeros", f"at {TARGET:.0%}", "plain call, ms", "deployed")
    headings = ("network", *times, "plain MB", "copies more", "at the target")
    rows = [row(name, times) for name, times in results.items()]
    title = "over plain torch: below 1 is faster; memory beyond plain torch's in copies of the sparsified weights"
    return Table(headings=headings, rows=rows, title=title).text()


def row(name: str, times: dict[str, Any]) -> tuple[object, ...]:
    plain, copy = times["plain bytes"], 4 * times["weights"]
    steps = [f"{times[side] / times['plain step']:.2f}" for side in ("step in the ramp", "step at the target")]
    calls = ["", ""]
    if "plain call" in times:
        calls = [f"{times['plain call']:.1f}", f"{times['deployed call'] / times['plain call']:.2f}"]
    copies = [f"{(times[side] - plain) / copy:.2f}" for side in ("bytes in the ramp", "bytes at the target")]
    return (name, round(times["plain step"]), *steps, *calls, round(plain / 2**20), *copies)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.times", description=__doc__)
    parser.add_argument("--only", action="append", choices=PUBLISHED, help="only this network")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=WORKING)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {"ramp": RAMP, "target": TARGET, "processor": cpu_model(), "networks": {}}
    if options.results.exists():
        results = json.loads(options.results.read_text(encoding="utf-8"))
    networks = results["networks"]
    for name in options.only or PUBLISHED:
        key = name if options.precision == "float32" else f"{name}, {options.precision}"
        if key not in networks:
            torch.manual_seed(0)
            build = PUBLISHED[name]
            networks[key] = measure(build, options.precision, options.rounds) | memory(build, options.precision)
            with whole_file(options.results) as unfinished:
                unfinished.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(networks))


if __name__ == "__main__":
    main()
