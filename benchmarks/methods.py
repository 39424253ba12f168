"""What every method costs on dense compute: a ResNet-50 training step with it against the same model without, in one run.

python benchmarks/methods.py [--batch 16] [--size 224] [--threads 2] [--repeats 5] [--methods rigl,set] [--cpu-time]

Each method is timed in turn with the dense model, step by step, so that a change of the machine's pace meets both; medians.
"average" is a step plus a hundredth of a mask update, for methods that update their masks every n steps, n = 100.
--cpu-time counts the process's own time on one thread, for a machine that is busy with other work.
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import nn

import autosparse
from autosparse.methods import Budgeted
from autosparse.methods.families.base import layer_parts
from autosparse.methods.target import TargetController
from autosparse.methods.target_steering import steer
from autosparse.parametrizations import SoftThreshold
from autosparse.sparsifier import Sparsifier

PERIOD = 100
UPDATE_LIMIT = 2.0  # seconds for the masks of the whole net, on two cores
LIMITS = {"learned": None, "every n steps": 1.05, "every step": 1.15, "once": 1.05, "rounds": 1.05}


@dataclass(frozen=True)
class Case:
    """A method, its fields, and when its masks change."""

    method: str
    when: str
    fields: dict[str, Any] = field(default_factory=dict)
    epochs: int = 100
    note: str = ""

    @property
    def label(self) -> str:
        return f"{self.method} {self.note}".strip()


CASES = (
    Case("autosparse", "learned"),
    Case("autosparse", "every n steps", {"target_sparsity": 0.9}, note="90 %"),
    Case("str", "learned"),
    Case("dst", "learned"),
    Case("optg", "learned", epochs=2),  # so short that half of the ramp lies behind the first epoch
    Case("ltp", "learned"),
    Case("cs", "learned"),
    Case("scl", "learned"),
    Case("topkast", "every step"),
    Case("topkast+pp", "every step"),
    Case("topkast+ga", "every step"),
    Case("rigl", "every n steps", {"update_every": PERIOD}),
    Case("set", "every n steps", {"update_every": PERIOD}),
    Case("dsr", "every n steps", {"update_every": PERIOD}),
    Case("snfs", "every n steps", {"update_every": PERIOD}),
    Case("mest", "every n steps"),
    Case("swat", "every n steps", {"update_every": PERIOD}),
    Case("gmp", "every n steps", {"update_every": PERIOD, "begin": 0.0, "start_sparsity": 0.5}),
    Case("dnw", "every step"),
    Case("dpf", "every n steps", {"update_every": PERIOD, "start_sparsity": 0.5}),
    Case("snip", "once"),
    Case("grasp", "once"),
    Case("synflow", "once", {"rounds": 2}),
    Case("random", "once"),
    Case("prune_retrain", "rounds"),
    Case("lottery", "rounds"),
    Case("dns", "every step"),
)


@dataclass
class Trainer:
    """A model, its data and its optimizer, sparsified or not."""

    step: Callable[[], None]
    run: Sparsifier | None
    batch: tuple[torch.Tensor, torch.Tensor]


def make(case: Case | None, batch: int, size: int) -> Trainer:
    torch.manual_seed(0)
    model: nn.Module = autosparse.models.resnet50()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,))
    run = None
    groups: Any = model.parameters()
    if case:
        method = autosparse.method(case.method, **case.fields)
        run = autosparse.sparsify(model, method, epochs=case.epochs, steps_per_epoch=5005, example_input=images[:1])
        run.compute("dense")  # what the method costs, not what kernels save
        groups = run.param_groups(weight_decay=2**-15)
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.875, weight_decay=2**-15)
    if run:
        run.bind(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        if run:
            loss = loss + run.penalty()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Trainer(step, run, (images, labels))


def score(trainer: Trainer) -> None:
    """One tiny batch is enough to choose a mask."""
    assert trainer.run is not None
    tiny = [tuple(each[:2] for each in trainer.batch)]
    trainer.run.score(tiny, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))


def update(run: Sparsifier) -> None:
    """Change the masks of all layers, at once and outside their time."""
    method = run.method
    if isinstance(method, Budgeted):
        method.renew(run)
    elif isinstance(controller := run.parts.get("controller"), TargetController):
        steer(layer_parts(run, SoftThreshold), controller, run.step, run.held_floor, run.generator)
    elif method.about.name in ("prune_retrain", "lottery"):
        run.next_round()
    elif method.about.name == "optg":
        method.end_epoch(run, None)


def has_update(case: Case) -> bool:
    return case.when in ("every n steps", "rounds") or case.method in ("optg", "topkast", "topkast+pp", "topkast+ga", "dnw")


def measure(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Interleaved medians of the dense step, the method's step and its mask update."""
    clock = time.process_time if arguments.cpu_time else time.perf_counter

    def seconds(call: Callable[[], None]) -> float:
        began = clock()
        call()
        return clock() - began

    dense = make(None, arguments.batch, arguments.size)
    sparse = make(case, arguments.batch, arguments.size)
    assert sparse.run is not None
    run = sparse.run
    updates = [seconds(lambda: score(sparse))] if case.method in ("snip", "grasp", "synflow") else []
    for trainer in (dense, sparse):
        trainer.step()  # warm-up: gradients and momentum exist from here on
    if case.when == "rounds":
        run.next_round()  # from the dense round to one with a mask
        sparse.step()
    if case.method == "optg":
        update(run)
    times: dict[str, list[float]] = {"dense": [], "sparse": []}
    for _ in range(arguments.repeats):
        times["dense"].append(seconds(dense.step))
        times["sparse"].append(seconds(sparse.step))
    for _ in range(min(3, arguments.repeats) if has_update(case) else 0):
        if case.method == "prune_retrain" and updates:
            break  # one round by default
        updates.append(seconds(lambda: update(run)))
        if case.when == "rounds":
            sparse.step()
    step, base = median(times["sparse"]), median(times["dense"])
    spent = median(updates) if updates else None
    average = step + spent / PERIOD if spent is not None and case.when == "every n steps" else step
    return {"dense": base, "step": step, "update": spent, "average": average, "ratio": average / base}


def row(case: Case, found: dict[str, Any]) -> str:
    limit = LIMITS[case.when]
    over = (limit is not None and found["ratio"] > limit) or (
        found["update"] is not None and case.when != "once" and found["update"] > UPDATE_LIMIT
    )
    update_text = "-" if found["update"] is None else f"{found['update']:.3f}"
    return (
        f"| {case.label} | {case.when} | {found['dense']:.3f} | {found['step']:.3f} | {update_text} | {found['average']:.3f} "
        f"| {found['ratio']:.3f} | {'-' if limit is None else limit}{' OVER' if over else ''} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--methods", help="names with commas between; all by default")
    parser.add_argument("--cpu-time", action="store_true", help="the process's own time on one thread")
    arguments = parser.parse_args()
    names = arguments.methods.split(",") if arguments.methods else autosparse.list_methods()
    known = {case.method for case in CASES}
    for name in names:
        if name not in known:
            raise SystemExit(f"there is no case for {name!r}; known: {', '.join(sorted(known))}")
    threads = 1 if arguments.cpu_time else arguments.threads
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", autosparse.SparsityWarning)
    what = "CPU time" if arguments.cpu_time else "time"
    print(f"ResNet-50, batch {arguments.batch}, {arguments.size} pixels, {threads} threads; {what} in seconds, medians")
    print("| method | masks change | dense step | step | mask update | average | ratio | limit |")
    print("|---|---|---|---|---|---|---|---|")
    for case in (case for case in CASES if case.method in names):
        print(row(case, measure(case, arguments)), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
