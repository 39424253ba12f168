"""`deploy`: a trained model for serving, with norms folded, weights packed, and every layer computed the fastest way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from autosparse.common.precisions import long_spelling
from autosparse.common.warnings import warn
from autosparse.kernels import library
from autosparse.kernels.library import Engine
from autosparse.parametrizations import SparseParametrization
from autosparse.quantization.fake import is_quantization_aware
from autosparse.serving.attempts import BY_DESIGN, Route, Served, serve
from autosparse.serving.decoders import deployed_class
from autosparse.serving.deployed import Deployed, Prepared
from autosparse.serving.example import Example
from autosparse.serving.example_spec import describe
from autosparse.serving.layerwise import writes_tokens
from autosparse.serving.quantized.calibration import Quantization, quantization_for
from autosparse.serving.quantized.linear import ByteLinear
from autosparse.serving.quantized.region import ByteRegion
from autosparse.serving.quantized.sensitivity import within
from autosparse.serving.reasons import listed, sentence

# A difference from the plain model, as a fraction of the output's length, that users should know of.
MUCH = 0.1


def deploy(
    model: nn.Module,
    example_input: Any,
    *,
    threads: int | None = None,
    precision: str = "float32",
    calibration: Iterable[Any] | None = None,
    ranges: str = "minmax",
    evaluate: Callable[[nn.Module], float] | None = None,
    max_drop: float | None = None,
) -> Deployed:
    """The model for serving inputs like the example's on `threads` threads (torch's own number by default).

    The example is a tensor, a tuple or list of positional arguments, or a mapping of keyword arguments. The model itself is
    left as it is. Batch norms are folded, ReLU and sums fused, weights packed for the native kernels, and for every layer
    dense or sparse is chosen by measuring. Other batch sizes, image sizes and lengths work too, with the same choices.

    With `precision="bfloat16"` convolutions compute so where that is faster, with "int8" all layers in eight bits. For int8
    `calibration` is an iterable of batches like the example; what they pass decides the `ranges` of activations ("minmax",
    "percentile" or "mse"). "auto" is int8 if there is calibration, else float32. With `evaluate`, which gives a model's score
    (more is better), the layers that cost most stay in float32 until the score is at most `max_drop` below the plain model's.
    """
    example = Example.of(example_input)
    check(model, example, threads)
    if (evaluate is None) != (max_drop is None):
        raise ValueError("give evaluate and max_drop together: a function that scores a model, and how much it may lose")
    quantization = quantization_for(long_spelling(precision), calibration, ranges, example, model.training)
    count = torch.get_num_threads() if threads is None else threads
    if quantization is None or evaluate is None or max_drop is None:
        return prepare(model, example, count, None, quantization)
    return within(model, quantization, evaluate, max_drop, lambda kept: prepare(model, example, count, None, kept))


def prepare(
    model: nn.Module,
    example: Example,
    threads: int,
    remembered: Route | None = None,
    quantization: Quantization | None = None,
) -> Deployed:
    """`deploy` for arguments that are checked, with choices that were measured before."""
    with torch.no_grad(), with_threads(threads), torch.random.fork_rng(devices=[]):
        engine = library.engine()
        served = serve(model, example, engine, threads, remembered, quantization)
        notes = list(served.route.notes)
        if engine is None:
            notes.append(f"all layers run in dense torch: {library.why_not()}")
        elif served.in_torch:
            notes.append(sentence(served.in_torch, served.layers))
        used = served.quantization
        if used is not None and engine is not None:
            notes += _about(served, engine, used.precision)
        examples = _positional(model, example)
        deployed = deployed_class(served.module)(served.module, examples, engine, threads, notes)
        instruction_set = engine.instruction_set if engine else None
        precision = "float32" if used is None else used.precision
        keep = frozenset() if used is None else used.keep
        deployed.prepared = Prepared(served, describe(example), threads, instruction_set, precision, keep)
    for note in notes:
        if note != BY_DESIGN:  # nothing to warn of
            warn(f"deploy: {note}")
    return deployed


def _about(served: Served, engine: Engine, precision: str) -> list[str]:
    """By how much a model in another precision than float32 differs, if that is much; and if nothing is in it."""
    if precision == "bfloat16" and engine.halves is None:
        return ["this processor multiplies no bfloat16 (avx512_bf16): float32 is used"]
    if writes_tokens(served.module):
        return [f"linear layers are not in {precision}, since tokens are written one at a time: layers() says more of each"]
    refused, off = served.route.calibration.refused, served.route.calibration.difference
    notes = [f"{listed(refused)} stays in float32, since in {precision} it computes something else"] if refused else []
    if not any(isinstance(part, ByteRegion | ByteLinear) for part in served.module.modules()):
        notes.append(f"no layer is computed in {precision}: float32 was faster, or nothing in the model can be")
    elif off > MUCH:
        notes.append(f"on the example {precision} differs from the plain model by {off:.1%} of the output's length")
    return notes


def check(model: nn.Module, example: Example, threads: int | None) -> None:
    """Refuse what cannot be deployed."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"deploy takes a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, Deployed):
        raise TypeError("the model is deployed already; give deploy the plain model")
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}; give 1 or more, or None for torch's own number")
    if any(isinstance(part, SparseParametrization) for part in model.modules()):
        raise ValueError("the model still carries its training parametrizations: call sparsifier.finalize() first, then deploy")
    if is_quantization_aware(model):
        raise ValueError("the model still trains with fake quantization: call finalize() on what quantize_aware returned first")
    for tensor in (*model.parameters(), *example.tensors()):
        if tensor.device.type != "cpu":
            raise ValueError(
                f"deploy is for the CPU, but a tensor is on {tensor.device}; call .cpu() on the model and the example"
            )


def _positional(model: nn.Module, example: Example) -> tuple[Any, ...]:
    """The example as decoders take it."""
    again = example.fresh()
    return (*inspect.signature(model.forward).bind(*again.args, **again.named).args,) if again.named else again.args


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """torch's own operations on this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
