"""Times training steps side by side: plain dense torch, and AutoSparse at several sparsities, in turn in one process."""

from __future__ import annotations

import ctypes
import multiprocessing
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import autosparse
from autosparse import AutoSparse
from autosparse.bench.tasks import Task, inputs_of, make_task, new_model, own_loss, plain_loss
from autosparse.compute.compute import LayerPlan
from autosparse.sparsifier import Sparsifier

WARM_UP = 3  # steps; under "auto" the planner measures in the first of them
RATE, MOMENTUM, DECAY = 0.01, 0.875, 2**-15
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
DENSE = "dense torch"
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Settings:
    """All that decides a measurement."""

    what: str
    batch: int
    tokens: int
    image: tuple[int, ...] | None
    threads: int
    alpha: float
    dense_grad_every: int
    backward_sparsity: float
    layer_by_layer: bool
    exclude: tuple[str, ...]
    default_malloc: bool
    cpu_time: bool


@dataclass(frozen=True)
class Row:
    """One side: seconds of its steps, how many times as fast as dense torch, and what it was when timed."""

    side: str
    seconds: list[float]
    faster_median: float
    faster_least: float
    sparsity: float | None
    compute: str
    peak_bytes: int | None = None

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def least(self) -> float:
        return min(self.seconds)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "median": self.median, "least": self.least}


@dataclass(frozen=True)
class Start:
    """Where an AutoSparse side begins (None: at the densities of a run), and how its layers run."""

    sparsity: float | None
    compute: str = "auto"

    @property
    def title(self) -> str:
        begin = "AutoSparse, densities of the run" if self.sparsity is None else f"AutoSparse from {100 * self.sparsity:g} %"
        return begin if self.compute == "auto" else f"{begin}, {self.compute} compute"


@dataclass
class Side:
    """A model with its optimizer, and one step of its training."""

    step: Callable[[], None]
    run: Sparsifier | None


def keep_memory() -> None:
    """Let glibc keep large blocks instead of returning them to the system: both sides gain."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def prepare(settings: Settings) -> Task:
    """Threads and allocator of this process, and the task."""
    torch.set_num_threads(settings.threads)
    if not settings.default_malloc:
        keep_memory()
    return make_task(settings.what, settings.batch, settings.tokens, settings.image)


def make_side(task: Task, settings: Settings, start: Start | None) -> Side:
    """A whole AutoSparse step, or without a start plain dense training."""
    model, inputs = new_model(task), inputs_of(task)
    run, loss_of = None, plain_loss
    groups: Any = model.parameters()
    if start is not None:
        run, loss_of = _attach(model, task, settings, start), own_loss
        groups = run.param_groups()
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=True)
    if run is not None:
        run.bind(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, inputs, task.targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Side(step, run)


def _attach(model: torch.nn.Module, task: Task, settings: Settings, start: Start) -> Sparsifier:
    method = AutoSparse(
        alpha=settings.alpha,
        schedule="constant",
        start_sparsity=start.sparsity,
        dense_grad_every=settings.dense_grad_every,
        backward_sparsity=settings.backward_sparsity,
    )
    run = autosparse.sparsify(
        model,
        method,
        epochs=100,
        steps_per_epoch=1000,
        include=task.include,
        exclude=settings.exclude or None,
        example_input=tuple(each[:1] for each in task.inputs),
        guard=None,
    )
    _start_at(run, task, start)
    run._compute.fuse = not settings.layer_by_layer
    run.compute(start.compute)
    return run


def _start_at(run: Sparsifier, task: Task, start: Start) -> None:
    """Every layer at its sparsity."""
    for layer in run.layers:
        sparsity = 1 - task.densities[layer.name] if start.sparsity is None and task.densities else start.sparsity
        layer.parametrization.start_at(layer.weight(), sparsity)  # type: ignore[operator]


def compare(task: Task, settings: Settings, starts: Sequence[Start], rounds: int) -> tuple[list[Row], dict[str, Side]]:
    """Every side's steps in turn; the first row is dense torch."""
    sides = {DENSE: make_side(task, settings, None)} | {each.title: make_side(task, settings, each) for each in starts}
    for side in sides.values():
        for _ in range(WARM_UP):
            side.step()
    clock = time.process_time if settings.cpu_time else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for (name, side), start in zip(sides.items(), (None, *starts), strict=True):
            if side.run is not None and start is not None:  # steps from random weights lose zeros: each is timed at as many
                _start_at(side.run, task, start)
            began = clock()
            for _ in range(settings.dense_grad_every):  # a whole cycle: its steps are not alike
                side.step()
            times[name].append((clock() - began) / settings.dense_grad_every)
    dense = times[DENSE]
    rows = [
        Row(
            name,
            times[name],
            median(dense) / median(times[name]),
            min(dense) / min(times[name]),
            None if side.run is None else side.run.sparsity(),
            "" if side.run is None else side.run.report().compute,
        )
        for name, side in sides.items()
    ]
    return rows, sides


def layer_plans(run: Sparsifier) -> list[LayerPlan]:
    """How every layer of a side runs, with the planner's times where it has measured."""
    return run._compute.plans(run.layers, run.densities())


def peak_bytes(settings: Settings, start: Start | None) -> int | None:
    """The most memory that a process of its own had while it trained a few steps; None where the system does not tell.

    With the system's allocator as it is: one that keeps freed blocks shows how they were laid out, not what was needed.
    """
    if not STATUS.exists():
        return None
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_train_and_look, replace(settings, default_malloc=True), start).result()


def _train_and_look(settings: Settings, start: Start | None) -> int:
    side = make_side(prepare(settings), settings, start)
    for _ in range(WARM_UP):
        side.step()
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
