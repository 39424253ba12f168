"""`deploy`: a trained model for serving, with norms folded, weights packed, and every layer computed the fastest way."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from autosparse.common.warnings import warn
from autosparse.kernels import library
from autosparse.parametrizations import SparseParametrization
from autosparse.quantization.fake import is_quantization_aware
from autosparse.serving.attempts import BY_DESIGN, Route, serve
from autosparse.serving.decoders import deployed_class
from autosparse.serving.deployed import Deployed, Prepared
from autosparse.serving.example import Example
from autosparse.serving.example_spec import describe
from autosparse.serving.reasons import sentence


def deploy(model: nn.Module, example_input: Any, *, threads: int | None = None) -> Deployed:
    """The model for serving inputs like the example's on `threads` threads (torch's own number by default).

    The example is a tensor, a tuple or list of positional arguments, or a mapping of keyword arguments. The model itself is
    left as it is. Batch norms are folded, ReLU and sums fused, weights packed for the native kernels, and for every layer
    dense or sparse is chosen by measuring. Other batch sizes, image sizes and lengths work too, with the same choices.
    """
    example = Example.of(example_input)
    check(model, example, threads)
    return prepare(model, example, torch.get_num_threads() if threads is None else threads)


def prepare(model: nn.Module, example: Example, threads: int, remembered: Route | None = None) -> Deployed:
    """`deploy` for arguments that are checked, with choices that were measured before."""
    with torch.no_grad(), _threads(threads), torch.random.fork_rng(devices=[]):
        engine = library.engine()
        served = serve(model, example, engine, threads, remembered)
        notes = list(served.route.notes)
        if engine is None:
            notes.append(f"all layers run in dense torch: {library.why_not()}")
        elif served.in_torch:
            notes.append(sentence(served.in_torch, served.layers))
        examples = _positional(model, example)
        deployed = deployed_class(served.module)(served.module, examples, engine, threads, notes)
        deployed.prepared = Prepared(served, describe(example), threads, engine.instruction_set if engine else None)
    for note in notes:
        if note != BY_DESIGN:  # nothing to warn of
            warn(f"deploy: {note}")
    return deployed


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
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
