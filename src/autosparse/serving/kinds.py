"""Which modules the native kernels can stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from autosparse.layer import transposed_linear_class
from autosparse.serving.steps import Origin

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
HARMLESS: set[Callable[..., Any]] = set()  # hooks of our own


def has_hooks(module: nn.Module) -> bool:
    """Whether something else runs with every call of a module."""
    return bool(module._forward_pre_hooks) or not HARMLESS.issuperset(module._forward_hooks.values())


def computes_as(module: nn.Module | None, kind: type[nn.Module]) -> bool:
    """Whether a module is of this class, or of a subclass that changes nothing, and its weight is a parameter."""
    if not isinstance(module, kind) or has_hooks(module) or "forward" in vars(module) or "weight" not in module._parameters:
        return False
    if isinstance(module, _ConvNd) and type(module)._conv_forward is not kind._conv_forward:  # type: ignore[attr-defined]
        return False
    return type(module).forward is kind.forward


def is_linear(module: nn.Module | None) -> bool:
    """Whether a module computes what nn.Linear computes; transformers' Conv1D does, with its weight transposed."""
    if computes_as(module, nn.Linear):
        return True
    kind = None if module is None else transposed_linear_class(module)
    return kind is not None and computes_as(module, kind)


def is_convolution(module: nn.Module | None) -> bool:
    """Whether a module computes what nn.Conv1d or nn.Conv2d computes."""
    return any(computes_as(module, kind) for kind in CONVOLUTIONS)


def origin_of(layer: nn.Module) -> Origin | None:
    """What the weight of a layer with folded norms was before; None where nothing was folded."""
    origin: Origin | None = vars(layer).get("origin")
    return origin


def set_origin(layer: nn.Module, origin: Origin) -> None:
    vars(layer)["origin"] = origin


def as_linear(module: nn.Module) -> nn.Linear:
    """The module itself, or for transformers' Conv1D a linear layer; the two then share their memory."""
    if isinstance(module, nn.Linear):
        return module
    weight, bias = module._parameters["weight"], module._parameters.get("bias")
    assert weight is not None
    linear = nn.Linear(weight.shape[0], weight.shape[1], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().t().contiguous(), requires_grad=False)
    if bias is not None:
        linear.bias = bias
    weight.data = linear.weight.data.t()
    return linear
