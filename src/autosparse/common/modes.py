"""Training and evaluation mode, by the flags of modules alone: a model's own `train` may do more than set them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def same_mode_after(model: nn.Module, inside: bool | None = None) -> Iterator[None]:
    """Whether each module trains is afterwards what it was before; `inside` all of them do or do not, if that is given."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, training in flags:
            module.training = training if inside is None else inside
        yield
    finally:
        for module, training in flags:
            module.training = training
