"""timm without torchvision: it imports image transforms and data sets of torchvision, which its networks never use.

The torchvision of the package index does not import on every build of torch, and a broken one breaks transformers as well:
`python -m tests.zoo.torchvision_stand_in` uninstalls it in that case. While timm is imported, empty modules stand in for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from importlib import import_module
from types import ModuleType

MODULES = ("torchvision", "transforms", "transforms.functional", "datasets", "ops", "ops.misc")


class InterpolationMode(Enum):
    """timm reads these by name when it is imported."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _StandIn(ModuleType):
    """Gives a class under any name; nobody can make an instance of it."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(self: object, *_: object, **__: object) -> None:
            raise ImportError(f"{name} needs torchvision, which is not installed: only the networks of timm work without it")

        return type(name, (), {"__init__": refuse})


@contextmanager
def torchvision_or_stand_in() -> Iterator[None]:
    """For the import of timm; afterwards torchvision is missing again, as other libraries must find it."""
    if is_usable():
        yield
        return
    names = [name if name == "torchvision" else f"torchvision.{name}" for name in MODULES]
    for name in names:
        module = sys.modules[name] = _StandIn(name)
        module.__path__ = []
        module.__dict__["InterpolationMode"] = InterpolationMode
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def is_usable() -> bool:
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError):  # RuntimeError: its operators were compiled for another torch
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return False
    return True


if __name__ == "__main__" and not is_usable():
    subprocess.run([sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], check=True)
