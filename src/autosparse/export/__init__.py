"""After training: files that are really smaller, and models that load where people serve."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autosparse.export.card import Facts, read_facts
from autosparse.export.reader import load_sparse
from autosparse.export.torch_file import save_torch
from autosparse.export.writer import save_sparse

# These need packages that not everyone has, and say so when they are first used.
_LATER = {"SparseHubMixin": "hub", "SparseModel": "hub", "save_onnx": "onnx", "save_onnx_int8": "onnx_int8"}

__all__ = [
    "Facts", "SparseHubMixin", "SparseModel", "load_sparse", "read_facts", "save_onnx", "save_onnx_int8", "save_sparse",
    "save_torch",
]  # fmt: skip

if TYPE_CHECKING:
    from autosparse.export.hub import SparseHubMixin as SparseHubMixin
    from autosparse.export.hub import SparseModel as SparseModel
    from autosparse.export.onnx import save_onnx as save_onnx
    from autosparse.export.onnx_int8 import save_onnx_int8 as save_onnx_int8


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
