"""Runs a module without a trace: on copies of its tensors, without hooks, and with random numbers that are drawn again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from autosparse.compute.tracing import HOOKS

Forward = Callable[..., Any]


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Whatever is drawn inside is drawn again behind it."""
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@contextmanager
def rehearsal(root: nn.Module, noise: float = 0.0) -> Iterator[None]:
    """Let the modules inside work on copies; attributes, parameters and buffers are as they were afterwards.

    `noise` is the relative size of a random change to all parameters. Hooks are left out: their effects may reach further.
    """
    modules = list(root.modules())
    before = [dict(vars(module)) for module in modules]
    cache, parametrize._cache = parametrize._cache, {}  # or the step itself would find the weights of the rehearsal there
    copies = _copies(
        [tensor for module in modules for tensor in (*module._parameters.values(), *module._buffers.values())], noise
    )
    try:
        for module in modules:
            for name in ("_parameters", "_buffers"):
                tensors = vars(module)[name]
                vars(module)[name] = {key: None if each is None else copies[each] for key, each in tensors.items()}
            vars(module).update({name: {} for name in HOOKS})
        with same_random_numbers(), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
            yield
    finally:
        parametrize._cache = cache
        for module, attributes in zip(modules, before, strict=True):
            vars(module).clear()
            vars(module).update(attributes)


def _itself(tensor: Tensor) -> Tensor:
    """In place of hooks on saved tensors: activation checkpoints count what is saved."""
    return tensor


def _copies(tensors: Sequence[Tensor | None], noise: float) -> dict[Tensor, Tensor]:
    """Tied tensors stay tied."""
    generator = torch.Generator().manual_seed(1)
    copies: dict[Tensor, Tensor] = {}
    for tensor in tensors:
        if tensor is not None and tensor not in copies:
            copies[tensor] = _copy(tensor, noise, generator)
    return copies


def _copy(tensor: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    copy = tensor.detach().clone()
    if not isinstance(tensor, nn.Parameter):
        return copy
    if noise and copy.dtype is torch.float32:
        copy.mul_(1 + noise * torch.randn(copy.shape, generator=generator))
    return nn.Parameter(copy, tensor.requires_grad)


class Results(NamedTuple):
    """What a step gives: outputs and buffers, and the gradients of inputs and parameters for random factors at the outputs.

    Gradients of parameters of one number, such as thresholds, are one tensor: each is a sum in which much cancels, and noise
    that happens to leave one of them alone says nothing of what rounding may do to it.
    """

    values: list[Tensor]
    gradients: list[Tensor | None]


def results_of(root: nn.Module, forward: Forward, arguments: Sequence[Tensor], noise: float = 0.0) -> Results:
    """The results of forward(root, *arguments) in a rehearsal."""
    with rehearsal(root, noise):
        inputs = [argument.detach().clone().requires_grad_(argument.requires_grad) for argument in arguments]
        outputs = [each for each in tree_leaves(forward(root, *inputs)) if isinstance(each, Tensor)]
        sources = [each for each in (*inputs, *root.parameters()) if each.requires_grad]
        return Results([*(each.detach() for each in outputs), *root.buffers()], _gradients(outputs, sources))


def _gradients(outputs: Sequence[Tensor], sources: Sequence[Tensor]) -> list[Tensor | None]:
    differentiable = [output for output in outputs if output.requires_grad]
    if not differentiable or not sources:
        return []
    generator = torch.Generator().manual_seed(0)
    factors = [torch.randn(output.shape, generator=generator, dtype=output.dtype) for output in differentiable]
    gradients = torch.autograd.grad(differentiable, sources, factors, allow_unused=True)
    numbers = [
        source.new_zeros(1) if gradient is None else gradient.reshape(1)
        for source, gradient in zip(sources, gradients, strict=True)
        if source.numel() == 1
    ]
    others = [gradient for source, gradient in zip(sources, gradients, strict=True) if source.numel() != 1]
    together = [torch.cat(numbers)] if numbers else []
    return [*others, *together]
