"""autosparse: neural networks that become sparse while they train, by themselves."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autosparse.common import moved

__version__ = "0.1.0"

moved.install()

# Loaded on first use, so that `import autosparse.cli` does not wait for torch.
_HOMES = {
    "AutoSparse": "methods",
    "AutoTune": "methods.autotune",
    "CS": "methods",
    "deploy": "serving",
    "DNS": "methods",
    "DNW": "methods",
    "DPF": "methods",
    "DSR": "methods",
    "DST": "methods",
    "gated_mask": "functional",
    "GMP": "methods",
    "GradientAnnealing": "methods.annealing",
    "GraSP": "methods",
    "list_methods": "methods",
    "load_sparse": "export",
    "LotteryTicket": "methods",
    "LTP": "methods",
    "MEST": "methods",
    "method": "methods",
    "OptG": "methods",
    "profile": "cost",
    "PruneRetrain": "methods",
    "Random": "methods",
    "recalibrate": "sparsifier.recalibration",
    "ReferenceRecorder": "methods.autotune",
    "RigL": "methods",
    "save_sparse": "export",
    "SCL": "methods",
    "SET": "methods",
    "SNFS": "methods",
    "SNIP": "methods",
    "soft_threshold": "functional",
    "Sparsifier": "sparsifier",
    "sparsify": "sparsifier",
    "SparsityWarning": "common.warnings",
    "STR": "methods",
    "SWAT": "methods",
    "SynFlow": "methods",
    "threshold_decay": "methods.autotune",
    "TopKAST": "methods",
    "TopKASTGA": "methods",
    "TopKASTPP": "methods",
}
_ROOMS = ("distributions", "functional", "methods", "models", "schedules")

__all__ = ["__version__", *_HOMES, *_ROOMS]

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
    from autosparse.methods import CS as CS
    from autosparse.methods import DNS as DNS
    from autosparse.methods import DNW as DNW
    from autosparse.methods import DPF as DPF
    from autosparse.methods import DSR as DSR
    from autosparse.methods import DST as DST
    from autosparse.methods import GMP as GMP
    from autosparse.methods import LTP as LTP
    from autosparse.methods import MEST as MEST
    from autosparse.methods import SCL as SCL
    from autosparse.methods import SET as SET
    from autosparse.methods import SNFS as SNFS
    from autosparse.methods import SNIP as SNIP
    from autosparse.methods import STR as STR
    from autosparse.methods import SWAT as SWAT
    from autosparse.methods import AutoSparse as AutoSparse
    from autosparse.methods import GraSP as GraSP
    from autosparse.methods import LotteryTicket as LotteryTicket
    from autosparse.methods import OptG as OptG
    from autosparse.methods import PruneRetrain as PruneRetrain
    from autosparse.methods import Random as Random
    from autosparse.methods import RigL as RigL
    from autosparse.methods import SynFlow as SynFlow
    from autosparse.methods import TopKAST as TopKAST
    from autosparse.methods import TopKASTGA as TopKASTGA
    from autosparse.methods import TopKASTPP as TopKASTPP
    from autosparse.methods import list_methods as list_methods
    from autosparse.methods import method as method
    from autosparse.methods.annealing import GradientAnnealing as GradientAnnealing
    from autosparse.methods.autotune import AutoTune as AutoTune
    from autosparse.methods.autotune import ReferenceRecorder as ReferenceRecorder
    from autosparse.methods.autotune import threshold_decay as threshold_decay
    from autosparse.serving import deploy as deploy
    from autosparse.sparsifier import Sparsifier as Sparsifier
    from autosparse.sparsifier import sparsify as sparsify
    from autosparse.sparsifier.recalibration import recalibrate as recalibrate


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
