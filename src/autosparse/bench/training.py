"""Times training steps side by side: plain dense torch, and AutoSparse at several sparsities, in turn in one process."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import autosparse
from autosparse import AutoSparse, kernels
from autosparse.bench.conditions import conditions
from autosparse.bench.tasks import Task, inputs_of, make_task, new_model, own_loss, plain_loss
from autosparse.common.turns import take_turns
from autosparse.methods.families.base import Method
from autosparse.sparsifier import Sparsifier

WARM_UP = 3  # steps; under "auto" the planner measures in the first of them
RATE, MOMENTUM, DECAY = 0.01, 0.875, 2**-15
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
DENSE = "dense torch"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
IN_FLOAT32 = f"{DENSE}, {FLOAT32}"  # beside a baseline of lower precision
AUTOSPARSE = "autosparse"
STEPS_PER_EPOCH = 100
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
    method: str = AUTOSPARSE
    inputs: str | None = None
    precision: str = FLOAT32


@dataclass(frozen=True)
class Row:
    """One side: seconds of its steps, how many times as fast as dense torch of its precision, and what it was when timed."""

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
    method: str = AUTOSPARSE

    @property
    def title(self) -> str:
        begin = "AutoSparse, densities of the run" if self.sparsity is None else f"AutoSparse from {100 * self.sparsity:g} %"
        if self.method != AUTOSPARSE and self.sparsity is not None:
            begin = f"{self.method} at {100 * self.sparsity:g} %"
        return begin if self.compute == "auto" else f"{begin}, {self.compute} compute"


@dataclass
class Side:
    """A model with its optimizer, and one step of its training."""

    step: Callable[[], None]
    sp: Sparsifier | None


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
    return make_task(settings.what, settings.batch, settings.tokens, settings.image, settings.inputs)


def make_side(task: Task, settings: Settings, start: Start | None) -> Side:
    """A whole AutoSparse step, or without a start plain dense training."""
    model, inputs = new_model(task), inputs_of(task)
    sp = None if start is None else _attach(model, task, settings, start)
    loss_of = plain_loss if sp is None else own_loss
    groups: Any = model.parameters() if sp is None else sp.param_groups()
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=True)
    if sp is not None:
        sp.bind(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == BFLOAT16):
            loss = loss_of(model, inputs, task.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Side(step, sp)


def _attach(model: torch.nn.Module, task: Task, settings: Settings, start: Start) -> Sparsifier:
    sp = autosparse.sparsify(
        model,
        _method(settings, start),
        epochs=1000,
        steps_per_epoch=STEPS_PER_EPOCH,
        include=task.include,
        exclude=settings.exclude or None,
        example_input=tuple(tensor[:1] for tensor in task.inputs),
        guard=None,
    )
    _start_at(sp, task, start)
    sp.compute(start.compute, fuse=not settings.layer_by_layer)
    return sp


def _method(settings: Settings, start: Start) -> Method:
    if start.method != AUTOSPARSE:
        return method_at(start.method, start.sparsity)
    return AutoSparse(
        alpha=settings.alpha,
        schedule="constant",
        start_sparsity=start.sparsity,
        dense_grad_every=settings.dense_grad_every,
        backward_sparsity=settings.backward_sparsity,
    )


def method_at(name: str, sparsity: float | None) -> Method:
    """A method whose layers all have this sparsity from the first step."""
    allowed = {field.name for field in fields(type(autosparse.method(name)))}
    if sparsity is None or not allowed & {"sparsity", "start_sparsity"}:
        raise ValueError(f"--method {name} cannot start at a given sparsity; give one that can, such as rigl, set or random")
    settings = {"sparsity": sparsity, "start_sparsity": sparsity, "dense_first": False, "begin": 0.0}
    return autosparse.method(name, **{key: value for key, value in settings.items() if key in allowed})


def cycle_of(sp: Sparsifier | None) -> int:
    """The steps after which a run repeats itself; some of them cost more than others."""
    if sp is None:
        return 1
    own = (getattr(sp.method, name, 1) for name in ("update_every", "dense_grad_every"))
    return max(STEPS_PER_EPOCH if each is None else int(each) for each in own)


def _start_at(sp: Sparsifier, task: Task, start: Start) -> None:
    """Every layer at its sparsity; a method with masks holds it by itself."""
    if start.method != AUTOSPARSE:
        return
    for layer in sp.layers:
        sparsity = 1 - task.densities[layer.name] if start.sparsity is None and task.densities else start.sparsity
        layer.parametrization.start_at(layer.weight(), sparsity)  # type: ignore[operator]


def compare(task: Task, settings: Settings, starts: Sequence[Start], rounds: int) -> tuple[list[Row], dict[str, Side]]:
    """Every side's steps in turn; the first row is dense torch in the same precision, the second may be float32."""
    sides = {title: make_side(task, each, start) for title, (each, start) in contestants(settings, starts).items()}
    begins = {start.title: start for start in starts}
    cycles = {title: cycle_of(side.sp) for title, side in sides.items()}  # whole ones are timed: their steps are not alike

    def steps(side: Side, count: int) -> None:
        for _ in range(count):
            side.step()

    def begin(title: str) -> None:
        sp = sides[title].sp
        if sp is not None:  # steps from random weights lose zeros: every round is timed at the same sparsity
            _start_at(sp, task, begins[title])

    for side in sides.values():
        steps(side, WARM_UP)
    calls = {title: partial(steps, side, cycles[title]) for title, side in sides.items()}
    times = take_turns(calls, rounds, clock=time.process_time if settings.cpu_time else time.perf_counter, before=begin)
    seconds = {title: [time / cycles[title] for time in times[title]] for title in sides}
    dense = seconds[DENSE]
    rows = [
        Row(
            title,
            seconds[title],
            median(dense) / median(seconds[title]),
            min(dense) / min(seconds[title]),
            None if side.sp is None else side.sp.sparsity(),
            "" if side.sp is None else side.sp.report().compute,
        )
        for title, side in sides.items()
    ]
    return rows, sides


def contestants(settings: Settings, starts: Sequence[Start]) -> dict[str, tuple[Settings, Start | None]]:
    """Every side by its title: its settings, and where it begins (None: plain dense torch)."""
    sides: dict[str, tuple[Settings, Start | None]] = {DENSE: (settings, None)}
    if settings.precision != FLOAT32:
        sides[IN_FLOAT32] = (replace(settings, precision=FLOAT32), None)
    return sides | {start.title: (settings, start) for start in starts}


def training_conditions(settings: Settings) -> dict[str, Any]:
    """Where training is measured, and against what."""
    clock = "processor time" if settings.cpu_time else "wall clock"
    malloc = "as the system has it" if settings.default_malloc else "glibc keeps freed memory"
    baseline = "channels_last, the same batch, fused SGD, cross-entropy on all logits"
    return conditions(
        kernels.instruction_set() if kernels.available() else f"none: {kernels.why_not()}",
        [],
        baseline=f"plain dense torch, {_in_words(settings)}, {baseline}",
        allocator=f"{malloc}, on both sides",
        clock=f"{clock}, the sides' steps in turn",
        memory="peak of a process for each side, with the system's allocator as it is",
    )


def _in_words(settings: Settings) -> str:
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    limited = f" (ONEDNN_MAX_CPU_ISA={limit})" if limit else ""
    return f"{settings.precision}{' autocast' if settings.precision == BFLOAT16 else ''}{limited}"


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
