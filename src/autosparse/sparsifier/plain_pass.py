"""One forward pass of a sparsified model with its plain weights; nothing that training depends on notices it."""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autosparse.compute import overrides
from autosparse.cost.recorder import same_random_state
from autosparse.layer import Layer

_HARMLESS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def plain_output(
    module: nn.Module, layers: Sequence[Layer], weights: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `module` gives for copies of the inputs when every layer has its weight of `weights`, in the module's own mode."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(warnings.catch_warnings(action="ignore"))  # one belongs to the user's own pass, which comes next
        stack.enter_context(same_random_state(module, args, kwargs))
        stack.enter_context(_same_other_random_state(module))
        stack.enter_context(_same_buffers(module))
        stack.enter_context(_with_weights(layers, weights))
        inputs = pytree.tree_map(_copy, (args, kwargs))
        try:
            return module.forward(*inputs[0], **inputs[1])
        finally:
            torch.clear_autocast_cache()  # holds casts that know no gradient


def _copy(value: Any) -> Any:
    """A module may write into its inputs."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value if isinstance(value, _HARMLESS) else copy.deepcopy(value)


@contextmanager
def _with_weights(layers: Sequence[Layer], weights: Mapping[str, Tensor]) -> Iterator[None]:
    parts = [layer.parametrization for layer in layers]
    before = [dict(vars(part)) for part in parts]  # a part may note what it sees
    try:
        for layer, part in zip(layers, parts, strict=True):
            overrides.take(part, overrides.PLAIN_PASS, partial(_give, weights[layer.name]))
        yield
    finally:
        for part, attributes in zip(parts, before, strict=True):
            vars(part).clear()
            vars(part).update(attributes)


def _give(weight: Tensor, part: nn.Module, stored: Tensor) -> Tensor:
    """The plain weight, whatever is stored; an embedding of tied weights asks for some of the rows that it has looked up."""
    return weight if stored.shape == weight.shape else stored


@contextmanager
def _same_buffers(module: nn.Module) -> Iterator[None]:
    """Batch-norm statistics and whatever else forward writes; a buffer that is replaced is put back, too."""
    holders = [(each, dict(each._buffers)) for each in module.modules()]
    values = [(buffer, buffer.clone()) for _, buffers in holders for buffer in buffers.values() if buffer is not None]
    try:
        yield
    finally:
        for each, buffers in holders:
            each._buffers.clear()
            each._buffers.update(buffers)
        for buffer, value in values:
            if not torch.equal(buffer, value):
                buffer.copy_(value)


@contextmanager
def _same_other_random_state(module: nn.Module) -> Iterator[None]:
    """Of Python, of NumPy, and of generators that modules hold."""
    numbers, numpy = random.getstate(), sys.modules.get("numpy")
    array_numbers = None if numpy is None else numpy.random.get_state()
    holders = [value for each in module.modules() for value in vars(each).values() if isinstance(value, torch.Generator)]
    states = [(generator, generator.get_state()) for generator in holders]
    try:
        yield
    finally:
        random.setstate(numbers)
        if numpy is not None:
            numpy.random.set_state(array_numbers)
        for generator, state in states:
            generator.set_state(state)
