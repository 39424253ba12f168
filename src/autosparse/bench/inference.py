"""Inference side by side: ours, torch eager, torch.compile and onnxruntime take turns in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.bench import encoders
from autosparse.bench.conditions import conditions
from autosparse.bench.engines import COMPILED, EAGER, OPENVINO, ORT, PRECISIONS, Call, dense_contestants, repeated, title
from autosparse.bench.tasks import own_inputs
from autosparse.common.processor import instruction_sets
from autosparse.common.turns import clock_for, take_turns
from autosparse.functional import shared_norm
from autosparse.kernels import library
from autosparse.models.inputs import INPUT_SHAPES
from autosparse.models.transformer import Transformer
from autosparse.serving.deployment import with_threads
from autosparse.serving.native import LayerChoice
from autosparse.training.build import build_named
from autosparse.training.deployed import CALIBRATION, deploy_in
from autosparse.training.finished import calibration_batches, held_out_data, open_finished

OURS = "ours"
DENSE_LAYERS = ("fc", "output")  # the classifier and the vocabulary, as the sparse recipes leave them
SENTENCE, TOKENS = 24, 24  # of a translation: words to read, tokens to write


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one contestant: the least is what the machine can do, the median what it did."""

    least: float
    median: float
    calls: int


def time_in_turn(calls: Mapping[str, Call], threads: int, rounds: int) -> dict[str, Timing]:
    """Every contestant once per round, each timed call right after an untimed one of its own."""
    # OpenVINO computes in threads of its own, even if it is one: then the whole process counts
    others = threads == 1 and any(name.startswith(OPENVINO) for name in calls)
    clock = time.process_time if others else clock_for(threads)
    seconds = take_turns(calls, rounds, clock=clock, before=lambda name: calls[name]())
    return {name: Timing(1e3 * min(times), 1e3 * statistics.median(times), len(times)) for name, times in seconds.items()}


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
    precision: str = "float32"
    over_best_dense: float | None = None  # of the same precision, by medians


def rows_of(model: str, batch: int, threads: int, timings: Mapping[str, Timing]) -> list[Row]:
    """The table's rows: ratios are of the least times; torch is the faster of eager and compiled."""
    ort, dense = timings.get(ORT), _fastest_dense(timings)
    torchs = [timings[name].least for name in (EAGER, COMPILED) if name in timings]
    return [
        Row(
            model, name, batch, threads, timing.least, timing.median, 1e3 * batch / timing.least,
            ort.least / timing.least if ort else None, min(torchs) / timing.least if torchs else None, timing.calls,
            _precision(name), dense[_precision(name)] / timing.median if _precision(name) in dense else None,
        )
        for name, timing in timings.items()
    ]  # fmt: skip


def _precision(contestant: str) -> str:
    """The precision in a contestant's name; float32 where it says none."""
    return next((word for word in PRECISIONS[1:] if word in contestant), "float32")


def _fastest_dense(timings: Mapping[str, Timing]) -> dict[str, float]:
    """The least median among dense engines, by precision."""
    fastest: dict[str, float] = {}
    for name, timing in timings.items():
        if not name.startswith(OURS):
            word = _precision(name)
            fastest[word] = min(timing.median, fastest.get(word, timing.median))
    return fastest


@dataclass(frozen=True)
class Measurement:
    """All contestants under one condition, how ours compute their layers, and what to know about it."""

    rows: list[Row]
    layers: dict[str, list[LayerChoice]]
    notes: list[str]


def inference_conditions() -> dict[str, Any]:
    """Where inference is measured, and against what."""
    engine = library.engine()
    return conditions(
        engine.instruction_set if engine else f"none: {library.why_not()}",
        ["onnxruntime", "openvino"],
        instruction_sets=", ".join(instruction_sets()) or "not known",
        baseline="onnxruntime dense, full graph optimisation, the same threads; ratios are of the least times, those over the "
        "best dense engine of the same precision of medians",
        clock="processor time on one thread, wall clock on more",
    )


@dataclass(frozen=True)
class Settings:
    """What is measured: a model, built-in or the user's own with a function that gives its inputs, or a finished run."""

    what: str
    sparsities: Sequence[float]
    rounds: int
    compiled: bool
    inputs: str | None
    precisions: Sequence[str]
    rows: int  # output channels that share their zeros


def measure_all(settings: Settings, batches: Sequence[int], threads: Sequence[int]) -> Iterator[Measurement]:
    """With every number of threads and every batch size."""
    for count in threads:
        with with_threads(count):
            for batch in batches:
                yield measure(settings, batch, count)


@torch.no_grad()
def measure(settings: Settings, batch: int, threads: int) -> Measurement:
    """All contestants under one condition."""
    from autosparse.bench.decoding import translation_contestants

    what, precisions = settings.what, settings.precisions
    check_known(what, settings.inputs)
    candidates = dict(contestants(what, settings.sparsities, settings.rows))
    (*_, last) = candidates.values()
    inputs = example(what, batch, settings.inputs, last)
    translators = {title: model for title, model in candidates.items() if isinstance(model, Transformer)}
    if translators:
        if tuple(precisions) != ("float32",):
            raise ValueError("translation is timed in float32 only: leave --precision out")
        calls, notes, translating = translation_contestants(translators, inputs[0], threads, TOKENS)
        layers = {title: deployed.layers() for title, deployed in translating.items()}
    else:
        batches = partial(_calibration, what, inputs)
        ours = {
            name.replace(OURS, title(OURS, precision)): deploy_in(model, inputs, precision, threads, batches)
            for precision in precisions
            for name, model in candidates.items()
        }
        calibration = batches() if "int8" in precisions else []
        calls, notes = dense_contestants(last, inputs, threads, settings.compiled, precisions, calibration)
        calls |= {name: partial(deployed, *inputs) for name, deployed in ours.items()}
        layers = {name: deployed.layers(*inputs) for name, deployed in ours.items()}
    # the name of a run's folder alone: do not leak local paths
    name = Path(what).resolve().name if Path(what).is_dir() else what
    return Measurement(rows_of(name, batch, threads, time_in_turn(calls, threads, settings.rounds)), layers, notes)


def _calibration(what: str, inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """Of a run, its training data; else the inputs themselves, since only speed is measured."""
    return calibration_batches(open_finished(Path(what)), CALIBRATION) if Path(what).is_dir() else [inputs]


def contestants(what: str, sparsities: Sequence[float], rows: int = 1) -> Iterator[tuple[str, nn.Module]]:
    """The models to deploy: a run's, or a built-in one at every sparsity."""
    if Path(what).is_dir():
        model = open_finished(Path(what)).model.float()
        yield f"ours, {zeros(model):.1%} zeros (learned)", model
        return
    for sparsity in sparsities:
        shared = f" shared by {rows} rows" if rows > 1 else ""
        yield f"ours, {sparsity:.0%} zeros{shared}", pruned(what, sparsity, rows=rows)
        if what == "transformer":
            yield f"ours, {sparsity:.0%} zeros{shared}, vocabulary too", pruned(what, sparsity, dense_layers=(), rows=rows)


def zeros(model: nn.Module) -> float:
    """The fraction of zeros among the weights of convolutions and linear layers."""
    weights = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    return sum(int((weight == 0).sum()) for weight in weights) / max(sum(weight.numel() for weight in weights), 1)


def pruned(name: str, sparsity: float, dense_layers: tuple[str, ...] = DENSE_LAYERS, rows: int = 1) -> nn.Module:
    """A model with the smallest weights of other layers set to zero; batch norms as after some training.

    So many neighbouring output channels share their zeros, by the norm over them.
    """
    torch.manual_seed(0)
    named = f"{encoders.__name__}:{name}" if name in encoders.NAMES else name
    model = build_named(named, {}, typed=True).eval().requires_grad_(False)
    for layer_name, layer in model.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_var is not None
            layer.running_var.uniform_(0.5, 1.5)
        if not isinstance(layer, nn.Conv2d | nn.Linear) or layer_name in dense_layers or sparsity == 0:
            continue
        if isinstance(layer, nn.Conv2d) and (layer.groups > 1 or layer_name == "conv1"):
            continue
        size = layer.weight.abs() if rows == 1 else shared_norm(layer.weight, rows, 0)
        layer.weight *= size > size.flatten().kthvalue(max(1, round(sparsity * size.numel()))).values
    return model


def check_known(what: str, inputs: str | None) -> None:
    """Refuse a model that is not known, or whose input is not."""
    if inputs is not None or Path(what).is_dir() or what in (*INPUT_SHAPES, *encoders.NAMES):
        return
    if ":" in what:
        raise ValueError(f"the input of {what} is not known; give a function that returns a batch: --inputs module:function")
    known = ", ".join([*INPUT_SHAPES, *encoders.NAMES])
    raise ValueError(f"{what} is neither a built-in model ({known}), nor module:function, nor the folder of a run")


def example(what: str, batch: int, inputs: str | None = None, model: nn.Module | None = None) -> tuple[Tensor, ...]:
    """Inputs of the usual size; of a run, samples of its data; or samples of the user's own module:function."""
    if inputs is not None:
        return repeated(own_inputs(inputs, model), batch)
    if Path(what).is_dir():
        run = open_finished(Path(what))
        return repeated(next(iter(held_out_data(run.folder, run.recipe).validation.epoch(0)))[0], batch)
    if what in encoders.NAMES:
        return (encoders.sentences(batch),)
    if what == "transformer":
        return (torch.randint(3, 30000, (batch, SENTENCE)),)
    return (torch.randn(batch, *INPUT_SHAPES[what]),)
