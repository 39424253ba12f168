"""Packages of the `data` and `text` extras, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def need(module: str, purpose: str, extra: str = "data") -> Any:
    """The module, or an error that names the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise RuntimeError(f'{purpose} needs the package {missing}: pip install "autosparse[{extra}]"') from error
