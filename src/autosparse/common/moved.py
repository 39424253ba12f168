"""Modules that have moved: their old paths warn and work until 1.0."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

# Old path to new path, below `autosparse`.
MOVED = {
    "activation_sparsity": "compute.activation_sparsity",
    "autotune": "methods.autotune",
    "deployment": "export",
    "deployment.engine": "serving",
    "guard": "sparsifier.guard",
    "methods.base": "methods.families.base",
    "methods.continuous": "methods.cs",
    "methods.drop_grow": "methods.families.drop_grow",
    "methods.fixed_mask": "methods.families.fixed_mask",
    "methods.learned": "methods.families.learned_mask",
    "methods.magnitude": "methods.families.magnitude",
    "methods.random_mask": "methods.random",
    "methods.scores": "methods.families.scored",
    "methods.set_": "methods.set",
    "recalibration": "sparsifier.recalibration",
    "selection": "sparsifier.selection",
    "summary": "sparsifier.report",
    "tensors": "common.tensors",
    "training.recipe": "recipes.recipe",
    "training.recipes": "recipes.loading",
    "warning": "common.warnings",
}
PACKAGE = "autosparse."


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the module at the new path for an import of the old one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if _new_path(fullname) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        new = _new_path(spec.name)
        assert new is not None
        warnings.warn(f"{spec.name} has moved to {new}; the old path works until 1.0", DeprecationWarning, stacklevel=2)
        module = ModuleType(spec.name)
        module.__path__ = []  # else the moved package's own path would be found, and its parts loaded a second time
        moved = importlib.import_module(new)
        module.__getattr__ = lambda name: getattr(moved, name)  # type: ignore[method-assign]
        module.__dict__["__all__"] = getattr(moved, "__all__", [name for name in vars(moved) if not name.startswith("_")])
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: its names are those of the moved module."""


def _new_path(fullname: str) -> str | None:
    """The new name of a module that has moved, or that stood in a package that has."""
    if not fullname.startswith(PACKAGE):
        return None
    old = fullname.removeprefix(PACKAGE)
    if old in MOVED:
        return PACKAGE + MOVED[old]
    parent, _, leaf = old.rpartition(".")
    return f"{PACKAGE}{MOVED[parent]}.{leaf}" if parent in MOVED else None


def install() -> None:
    """Let imports of old paths find the new ones."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
