"""Inference side by side: ours, torch eager, torch.compile and onnxruntime take turns in one process."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

ORT, EAGER, COMPILED = "onnxruntime", "torch eager", "torch.compile"
Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one contestant: the least is what the machine can do, the median what it did."""

    least: float
    median: float
    calls: int


def take_turns(calls: Mapping[str, Call], threads: int, rounds: int) -> dict[str, Timing]:
    """Every contestant once a round, each call right after another of its own.

    On one thread processor time counts, which other programs disturb least; on more it is the clock on the wall.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            begin = clock()
            call()
            seconds[name].append(clock() - begin)
    return {name: Timing(1e3 * min(found), 1e3 * statistics.median(found), len(found)) for name, found in seconds.items()}


def onnx_session(model: nn.Module, inputs: tuple[Tensor, ...], threads: int, dynamic: Any = None) -> Any:
    """A session on the model in ONNX: full graph optimisation, so many threads."""
    runtime = import_module("onnxruntime")
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(model, inputs, dynamo=True, external_data=False, verbose=False, dynamic_shapes=dynamic)
    finally:
        exporter.setLevel(level)
    assert program is not None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    # its threads wait busily within a call, which is fastest, but not while it is the others' turn
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return runtime.InferenceSession(program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_session(session: Any, inputs: tuple[Tensor, ...]) -> Call:
    """A call of a session on these inputs."""
    feed = {each.name: value.numpy() for each, value in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)


def dense_contestants(
    model: nn.Module, inputs: tuple[Tensor, ...], threads: int, compiled: bool
) -> tuple[dict[str, Call], list[str]]:
    """The dense baselines that can run here, and notes on those that cannot."""
    notes: list[str] = []
    # the memory order in which torch's own convolutions are fastest
    images = inputs[0].dim() == 4
    shaped = model.to(memory_format=torch.channels_last) if images else model  # type: ignore[call-overload]
    given = tuple(each.contiguous(memory_format=torch.channels_last) if each.dim() == 4 else each for each in inputs)
    calls: dict[str, Call] = {EAGER: lambda: shaped(*given)}
    if compiled:
        try:
            torch._dynamo.reset()
            fast = torch.compile(shaped)
            fast(*given)
            calls[COMPILED] = lambda: fast(*given)
        except Exception as error:  # no C++ compiler, an operation that it cannot take
            notes.append(f"torch.compile failed: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
    try:
        calls[ORT] = run_session(onnx_session(model, inputs, threads), inputs)
    except ImportError as error:
        notes.append(f"onnxruntime was left out: {error}; pip install onnx onnxscript onnxruntime")
    return calls, notes


@dataclass(frozen=True)
class Row:
    """One contestant under one condition."""

    model: str
    contestant: str
    batch: int
    threads: int
    milliseconds: float
    median: float
    samples_per_second: float
    over_onnxruntime: float | None
    over_torch: float | None
    calls: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rows_of(model: str, batch: int, threads: int, timings: Mapping[str, Timing]) -> list[Row]:
    """The table's rows: ratios are of the least times; torch is the faster of eager and compiled."""
    ort = timings.get(ORT)
    torchs = [timings[name].least for name in (EAGER, COMPILED) if name in timings]
    return [
        Row(
            model, name, batch, threads, found.least, found.median, 1e3 * batch / found.least,
            ort.least / found.least if ort else None, min(torchs) / found.least if torchs else None, found.calls,
        )
        for name, found in timings.items()
    ]  # fmt: skip
