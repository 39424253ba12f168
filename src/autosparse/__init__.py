"""autosparse: neural networks that become sparse while they train, by themselves."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autosparse.common import moved

__version__ = "0.2.0"

moved.install()

# Loaded on first use, so that `import autosparse.cli` does not wait for torch: each module with the names that it gives.
_NAMES = {
    "methods": (
        *("ACDC", "AutoSparse", "CS", "DNS", "DNW", "DPF", "DSR", "DST", "Feather", "FeatherGA", "GDP", "GMP", "GraNet"),
        *("GraSP", "GradMax", "Keep", "LTP", "LotteryTicket", "MEST", "OptG", "PruneRetrain", "Random", "RigL", "SCL", "SET"),
        *("SNFS", "SNIP", "ST3", "ST3GA", "STR", "SWAT", "SynFlow", "ThreeSP", "TopKAST", "TopKASTGA", "TopKASTPP", "Wanda"),
        *("list_methods", "method"),
    ),
    "methods.annealing": ("GradientAnnealing",),
    "methods.autotune": ("AutoTune", "ReferenceRecorder", "threshold_decay"),
    "sparsifier": ("Sparsifier", "sparsify"),
    "sparsifier.quantize_aware": ("quantize_aware",),
    "sparsifier.recalibration": ("recalibrate",),
    "sparsifier.zeros": ("keep_zeros", "prune"),
    "cost": ("profile",),
    "structure": ("shrink", "shrink_like"),
    "export": ("load_sparse", "save_sparse"),
    "serving": ("deploy", "load_deployed"),
    "sparsifier.estimate": ("estimate",),
    "functional": ("gated_mask", "soft_threshold"),
    "common.warnings": ("SparsityWarning",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("distributions", "functional", "methods", "models", "schedules")

__all__ = ["__version__", *_HOMES, *_MODULES]

if TYPE_CHECKING:
    from autosparse import distributions as distributions
    from autosparse import functional as functional
    from autosparse import methods as methods
    from autosparse import models as models
    from autosparse import schedules as schedules
    from autosparse.common.warnings import SparsityWarning as SparsityWarning
    from autosparse.cost import profile as profile
    from autosparse.export import load_sparse as load_sparse
    from autosparse.export import save_sparse as save_sparse
    from autosparse.functional import gated_mask as gated_mask
    from autosparse.functional import soft_threshold as soft_threshold
    from autosparse.methods import *  # noqa: F403
    from autosparse.methods.autotune import ReferenceRecorder as ReferenceRecorder
    from autosparse.methods.autotune import threshold_decay as threshold_decay
    from autosparse.serving import deploy as deploy
    from autosparse.serving import load_deployed as load_deployed
    from autosparse.sparsifier import Sparsifier as Sparsifier
    from autosparse.sparsifier import sparsify as sparsify
    from autosparse.sparsifier.estimate import estimate as estimate
    from autosparse.sparsifier.quantize_aware import quantize_aware as quantize_aware
    from autosparse.sparsifier.recalibration import recalibrate as recalibrate
    from autosparse.sparsifier.zeros import keep_zeros as keep_zeros
    from autosparse.sparsifier.zeros import prune as prune
    from autosparse.structure import shrink as shrink
    from autosparse.structure import shrink_like as shrink_like


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"autosparse.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"autosparse.{name}")
    else:
        raise AttributeError(f"module 'autosparse' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
