"""Networks in plain torch; they know nothing of sparsity."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from autosparse.common.words import did_you_mean
from autosparse.models.chunked_loss import chunked_cross_entropy
from autosparse.models.cifar_resnet import resnet18_cifar, resnet20, resnet32
from autosparse.models.mobilenet import mobilenet_v1
from autosparse.models.resnet import resnet50
from autosparse.models.rows import mlp, text_classifier
from autosparse.models.small import small_conv, small_transformer
from autosparse.models.transformer import transformer

__all__ = [
    "build",
    "chunked_cross_entropy",
    "list_models",
    "mlp",
    "mobilenet_v1",
    "resnet18_cifar",
    "resnet20",
    "resnet32",
    "resnet50",
    "small_conv",
    "small_transformer",
    "text_classifier",
    "transformer",
]

_FUNCTIONS = ("build", "chunked_cross_entropy", "list_models")
_BUILDERS: dict[str, Callable[..., nn.Module]] = {name: globals()[name] for name in __all__ if name not in _FUNCTIONS}


def list_models() -> tuple[str, ...]:
    """The names that `build` accepts, in alphabetical order."""
    return tuple(sorted(_BUILDERS))


def parameters_of(name: str) -> tuple[str, ...]:
    """The arguments of a network; none for an unknown name, which `build` refuses."""
    return tuple(inspect.signature(_BUILDERS[name]).parameters) if name in _BUILDERS else ()


def build(name: str, **arguments: Any) -> nn.Module:
    """The named network; an unknown name or argument is an error that lists what is allowed."""
    if name not in _BUILDERS:
        known = list_models()
        raise ValueError(
            f"unknown model {name!r}{did_you_mean(str(name), known, otherwise='.')} Known models: {', '.join(known)}"
        )
    builder = _BUILDERS[name]
    allowed = list(inspect.signature(builder).parameters)
    for argument in arguments:
        if argument not in allowed:
            hint = did_you_mean(argument, allowed, otherwise=".")
            raise TypeError(f"{name} has no argument {argument!r}{hint} Its arguments: {', '.join(allowed)}")
    return builder(**arguments)
