"""The class that torch makes for a module with parametrizations."""

from __future__ import annotations

from torch import nn


def own_class(module: nn.Module) -> None:
    """Deep copies share the class that torch made for the original: taking a property from it would break all of them."""
    shared = type(module)
    content = {name: value for name, value in vars(shared).items() if name not in ("__dict__", "__weakref__")}
    module.__class__ = type(shared.__name__, shared.__bases__, content)
