"""Inference side by side: ours, torch eager, torch.compile and onnxruntime take turns in one process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.bench.conditions import conditions
from autosparse.bench.tasks import own_inputs
from autosparse.common.turns import clock_for, take_turns
from autosparse.export.onnx import onnx_program
from autosparse.kernels import library
from autosparse.models.inputs import INPUT_SHAPES
from autosparse.models.transformer import Transformer
from autosparse.serving import Deployed, deploy
from autosparse.serving.native import LayerChoice
from autosparse.training.build import build_named
from autosparse.training.finished import held_out_data, open_finished

DENSE_LAYERS = ("fc", "output")  # the classifier and the vocabulary, as the sparse recipes leave them
SENTENCE, TOKENS = 24, 24  # of a translation: words to read, tokens to write
ORT, EAGER, COMPILED = "onnxruntime", "torch eager", "torch.compile"
Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one contestant: the least is what the machine can do, the median what it did."""

    least: float
    median: float
    calls: int


def time_in_turn(calls: Mapping[str, Call], threads: int, rounds: int) -> dict[str, Timing]:
    """Every contestant once per round, each timed call right after an untimed one of its own."""
    seconds = take_turns(calls, rounds, clock=clock_for(threads), before=lambda name: calls[name]())
    return {name: Timing(1e3 * min(times), 1e3 * statistics.median(times), len(times)) for name, times in seconds.items()}


def onnx_session(model: nn.Module, inputs: tuple[Tensor, ...], threads: int, dynamic: Any = None) -> Any:
    """A session on the model in ONNX, with full graph optimisation."""
    runtime = import_module("onnxruntime")
    program = onnx_program(model, inputs, dynamic_shapes=dynamic)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    # its threads wait busily within a call, which is fastest, but not while it is the others' turn
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return runtime.InferenceSession(program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_session(session: Any, inputs: tuple[Tensor, ...]) -> Call:
    """A call of a session on these inputs."""
    feed = {slot.name: value.numpy() for slot, value in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)


def dense_contestants(
    model: nn.Module, inputs: tuple[Tensor, ...], threads: int, compiled: bool
) -> tuple[dict[str, Call], list[str]]:
    """The dense baselines that can run here, and notes on those that cannot."""
    notes: list[str] = []
    # the memory order in which torch's own convolutions are fastest
    images = inputs[0].dim() == 4
    shaped = model.to(memory_format=torch.channels_last) if images else model  # type: ignore[call-overload]
    ordered = tuple(image.contiguous(memory_format=torch.channels_last) if images else image for image in inputs)
    calls: dict[str, Call] = {EAGER: lambda: shaped(*ordered)}
    if compiled:
        try:
            torch._dynamo.reset()
            fast = torch.compile(shaped)
            fast(*ordered)
            calls[COMPILED] = lambda: fast(*ordered)
        except Exception as error:  # no C++ compiler, an operation that it cannot take
            notes.append(f"torch.compile failed: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
    try:
        calls[ORT] = run_session(onnx_session(model, inputs, threads), inputs)
    except ImportError as error:
        notes.append(f"onnxruntime was left out: {error}; pip install onnx onnxscript onnxruntime")
    except Exception as error:  # an operation that the exporter cannot take
        notes.append(f"onnxruntime was left out: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
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


def rows_of(model: str, batch: int, threads: int, timings: Mapping[str, Timing]) -> list[Row]:
    """The table's rows: ratios are of the least times; torch is the faster of eager and compiled."""
    ort = timings.get(ORT)
    torchs = [timings[name].least for name in (EAGER, COMPILED) if name in timings]
    return [
        Row(
            model, name, batch, threads, timing.least, timing.median, 1e3 * batch / timing.least,
            ort.least / timing.least if ort else None, min(torchs) / timing.least if torchs else None, timing.calls,
        )
        for name, timing in timings.items()
    ]  # fmt: skip


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
        ["onnxruntime"],
        baseline="onnxruntime dense, full graph optimisation, the same threads; ratios are of the least times",
        clock="processor time on one thread, wall clock on more",
    )


def measure_all(
    what: str,
    sparsities: Sequence[float],
    batches: Sequence[int],
    threads: Sequence[int],
    rounds: int,
    compiled: bool,
    inputs: str | None = None,
) -> Iterator[Measurement]:
    """A model, built-in or the user's own, or a finished run with every number of threads and every batch size."""
    before = torch.get_num_threads()
    try:
        for count in threads:
            torch.set_num_threads(count)
            for batch in batches:
                yield measure(what, sparsities, batch, count, rounds, compiled, inputs)
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def measure(
    what: str,
    sparsities: Sequence[float],
    batch: int,
    threads: int,
    rounds: int,
    compiled: bool,
    own_batch: str | None = None,
) -> Measurement:
    """All contestants under one condition."""
    from autosparse.bench.decoding import translation_contestants

    inputs = example(what, batch, own_batch)
    candidates = dict(contestants(what, sparsities))
    (*_, last) = candidates.values()
    translators = {title: model for title, model in candidates.items() if isinstance(model, Transformer)}
    if translators:
        calls, notes, translating = translation_contestants(translators, inputs[0], threads, TOKENS)
        layers = {title: deployed.layers() for title, deployed in translating.items()}
    else:
        ours = {title: deploy(model, inputs, threads=threads) for title, model in candidates.items()}
        calls, notes = dense_contestants(last, inputs, threads, compiled)
        calls |= {title: partial(deployed, *inputs) for title, deployed in ours.items()}
        layers = {title: deployed.layers(*inputs) for title, deployed in ours.items() if isinstance(deployed, Deployed)}
    # the name of a run's folder alone: do not leak local paths
    name = Path(what).resolve().name if Path(what).is_dir() else what
    return Measurement(rows_of(name, batch, threads, time_in_turn(calls, threads, rounds)), layers, notes)


def contestants(what: str, sparsities: Sequence[float]) -> Iterator[tuple[str, nn.Module]]:
    """The models to deploy: a run's, or a built-in one at every sparsity."""
    if Path(what).is_dir():
        model = open_finished(Path(what)).model.float()
        yield f"ours, {zeros(model):.1%} zeros (learned)", model
        return
    for sparsity in sparsities:
        yield f"ours, {sparsity:.0%} zeros", pruned(what, sparsity)
        if what == "transformer":
            yield f"ours, {sparsity:.0%} zeros, vocabulary too", pruned(what, sparsity, dense_layers=())


def zeros(model: nn.Module) -> float:
    """The fraction of zeros among the weights of convolutions and linear layers."""
    weights = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    return sum(int((weight == 0).sum()) for weight in weights) / max(sum(weight.numel() for weight in weights), 1)


def pruned(name: str, sparsity: float, dense_layers: tuple[str, ...] = DENSE_LAYERS) -> nn.Module:
    """A model with the smallest weights of other layers set to zero; batch norms as after some training."""
    torch.manual_seed(0)
    model = build_named(name, {}, typed=True).eval().requires_grad_(False)
    for layer_name, layer in model.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_var is not None
            layer.running_var.uniform_(0.5, 1.5)
        if not isinstance(layer, nn.Conv2d | nn.Linear) or layer_name in dense_layers or sparsity == 0:
            continue
        if isinstance(layer, nn.Conv2d) and (layer.groups > 1 or layer_name == "conv1"):
            continue
        size = layer.weight.abs()
        layer.weight *= size > size.flatten().kthvalue(max(1, round(sparsity * size.numel()))).values
    return model


def example(what: str, batch: int, inputs: str | None = None) -> tuple[Tensor, ...]:
    """Inputs of the usual size; of a run, samples of its data; or samples of the user's own module:function."""
    if inputs is not None:
        return _samples(own_inputs(inputs), batch)
    if Path(what).is_dir():
        run = open_finished(Path(what))
        return _samples(next(iter(held_out_data(run.folder, run.recipe).validation.epoch(0)))[0], batch)
    if ":" in what:
        raise ValueError(f"the input of {what} is not known; give a function that returns a batch: --inputs module:function")
    if what not in INPUT_SHAPES:
        raise ValueError(
            f"{what} is neither a built-in model ({', '.join(INPUT_SHAPES)}), nor module:function, nor the folder of a run"
        )
    if what == "transformer":
        return (torch.randint(3, 30000, (batch, SENTENCE)),)
    return (torch.randn(batch, *INPUT_SHAPES[what]),)


def _samples(inputs: Sequence[Tensor], batch: int) -> tuple[Tensor, ...]:
    """As many samples as asked for, repeated where there are fewer."""
    return tuple(torch.cat([tensor] * -(-batch // len(tensor)))[:batch] for tensor in inputs)
