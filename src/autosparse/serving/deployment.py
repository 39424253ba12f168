"""`deploy`: a trained model for serving, with norms folded, weights packed, and every layer computed the fastest way."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from autosparse.common.warnings import warn
from autosparse.kernels import library
from autosparse.serving.agreement import agree
from autosparse.serving.capture import CannotCaptureError, Examples
from autosparse.serving.decoders import deployed_class
from autosparse.serving.deployed import Deployed
from autosparse.serving.layerwise import replace_layers
from autosparse.serving.rewrite import captured


def deploy(model: nn.Module, example_input: Tensor | Examples, *, threads: int | None = None) -> Deployed:
    """The model for serving inputs like the example's on `threads` threads (torch's own number by default).

    The model itself is left as it is. Batch norms are folded, ReLU and sums fused, weights packed for the native kernels, and
    for every layer dense or sparse is chosen by measuring. Other batch and image sizes work too, with the same choices.
    """
    examples = example_input if isinstance(example_input, tuple) else (example_input,)
    _check(model, examples, threads)
    count = torch.get_num_threads() if threads is None else threads
    with torch.no_grad(), _threads(count):
        engine = library.engine()
        notes = [] if engine is not None else [f"all layers run in dense torch: {library.why_not()}"]
        served = _served(model, examples, engine, count, notes)
        deployed = deployed_class(served)(served, examples, engine, count, notes)
    for note in notes:
        warn(f"deploy: {note}")
    return deployed


def _served(model: nn.Module, examples: Examples, engine: library.Engine | None, threads: int, notes: list[str]) -> nn.Module:
    """The captured graph, or the model with its layers replaced one by one; either gives the plain model's outputs."""
    plain = copy.deepcopy(model).eval().requires_grad_(False)
    expected = plain(*examples)
    try:
        graph = captured(plain, examples, engine, threads, notes)
    except CannotCaptureError as error:
        notes.append(
            f"the model keeps its structure and its layers are replaced one by one, since torch.fx cannot capture it ({error})"
        )
    else:
        if agree(graph(*examples), expected):
            return graph
        notes.append("the captured graph computes something else than the model; its layers were replaced one by one")
    plain = copy.deepcopy(model).eval().requires_grad_(False)
    notes += replace_layers(plain, examples, engine, threads)
    if not agree(plain(*examples), expected):
        raise RuntimeError("the deployed model computes something else than the plain one: please report this model")
    return plain


def _check(model: nn.Module, examples: Examples, threads: int | None) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"deploy takes a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, Deployed):
        raise TypeError("the model is deployed already; give deploy the plain model")
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}; give 1 or more, or None for torch's own number")
    if any(parametrize.is_parametrized(module) for module in model.modules()):
        raise ValueError("the model still carries its training parametrizations: call sparsifier.finalize() first, then deploy")
    for tensor in (*model.parameters(), *(example for example in examples if isinstance(example, Tensor))):
        if tensor.device.type != "cpu":
            raise ValueError(
                f"deploy is for the CPU, but a tensor is on {tensor.device}; call .cpu() on the model and the example"
            )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
