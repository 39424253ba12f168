"""autosparse: neural networks that become sparse while they train, by themselves."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Loaded on first use, so that `import autosparse.cli` does not wait for torch.
_HOMES = {
    "AutoSparse": "methods",
    "AutoTune": "autotune",
    "GradientAnnealing": "methods.annealing",
    "ReferenceRecorder": "autotune",
    "STR": "methods",
    "Sparsifier": "sparsifier",
    "SparsityWarning": "warning",
    "gated_mask": "functional",
    "list_methods": "methods",
    "method": "methods",
    "profile": "cost",
    "recalibrate": "recalibration",
    "soft_threshold": "functional",
    "sparsify": "sparsifier",
    "threshold_decay": "autotune",
}
_ROOMS = ("distributions", "functional", "methods", "models", "schedules")

__all__ = ["__version__", *_HOMES, *_ROOMS]

if TYPE_CHECKING:
    from autosparse import distributions as distributions
    from autosparse import functional as functional
    from autosparse import methods as methods
    from autosparse import models as models
    from autosparse import schedules as schedules
    from autosparse.autotune import AutoTune as AutoTune
    from autosparse.autotune import ReferenceRecorder as ReferenceRecorder
    from autosparse.autotune import threshold_decay as threshold_decay
    from autosparse.cost import profile as profile
    from autosparse.functional import gated_mask as gated_mask
    from autosparse.functional import soft_threshold as soft_threshold
    from autosparse.methods import STR as STR
    from autosparse.methods import AutoSparse as AutoSparse
    from autosparse.methods import list_methods as list_methods
    from autosparse.methods import method as method
    from autosparse.methods.annealing import GradientAnnealing as GradientAnnealing
    from autosparse.recalibration import recalibrate as recalibrate
    from autosparse.sparsifier import Sparsifier as Sparsifier
    from autosparse.sparsifier import sparsify as sparsify
    from autosparse.warning import SparsityWarning as SparsityWarning


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"autosparse.{_HOMES[name]}"), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"autosparse.{name}")
    else:
        raise AttributeError(f"module 'autosparse' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
