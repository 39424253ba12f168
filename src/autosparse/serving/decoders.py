"""Decoders are plug-ins: a model class that writes token by token may have a deployed class of its own."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from autosparse.serving.deployed import Deployed

# Called like `Deployed`: served module, examples, engine, threads, notes.
DeployedClass = Callable[..., Deployed]


def _translation(*arguments: Any) -> Deployed:
    # imported here, so that serving knows no model before one is deployed
    deployed: Deployed = import_module("autosparse.serving.translation").DeployedTransformer(*arguments)
    return deployed


# By qualified class name, which can be compared without importing the class.
DECODERS: dict[str, DeployedClass] = {"autosparse.models.transformer.Transformer": _translation}


def register_decoder(model_class: type[nn.Module], deployed: DeployedClass) -> None:
    """Let `deploy` give models of this class and its subclasses as `deployed(module, examples, engine, threads, notes)`."""
    DECODERS[_qualified(model_class)] = deployed


def deployed_class(model: nn.Module) -> DeployedClass:
    """What the nearest registered class of the model is deployed as; `Deployed` itself if none is registered."""
    names = (_qualified(kind) for kind in type(model).__mro__)
    return next((DECODERS[name] for name in names if name in DECODERS), Deployed)


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
