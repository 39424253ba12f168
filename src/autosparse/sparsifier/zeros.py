"""Zeros outside a run: pruning a model once, and keeping its zeros while something else writes its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.methods.families.base import LooksAtData, Method
from autosparse.sparsifier.selection import Patterns
from autosparse.sparsifier.sparsifier import sparsify


def prune(
    model: nn.Module,
    method: Method,
    batches: Iterable[Any] | None = None,
    loss_fn: Callable[..., Tensor] | None = None,
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    seed: int = 0,
) -> nn.Module:
    """Prune once, in place and without training: the zeros that a method starts with, such as those of Wanda."""
    sp = sparsify(model, method, epochs=1, steps_per_epoch=1, include=include, exclude=exclude, seed=seed)
    if isinstance(method, LooksAtData) and not sp.memory.get("scored"):
        if batches is None:
            sp.finalize()
            raise ValueError(f"{method.about.name} looks at data: give prune the batches")
        sp.score(batches, loss_fn)
    return sp.finalize()


@contextmanager
def keep_zeros(model: nn.Module) -> Iterator[nn.Module]:
    """Whatever writes into the model's weights inside, such as the merging of an adapter: what was zero is zero afterwards.

    Weights of two or more dimensions are watched. One that is zero altogether is not: adapters start like that.
    """
    zeros = [(weight, weight.detach() == 0) for weight in model.parameters() if weight.dim() > 1]
    watched = [(weight, zero) for weight, zero in zeros if bool(zero.any()) and not bool(zero.all())]
    if not watched:
        raise ValueError("the model has no weight with zeros to keep: prune it first, or load its sparse weights")
    try:
        yield model
    finally:
        with torch.no_grad():
            for weight, zero in watched:
                weight.masked_fill_(zero.to(weight.device), 0)
