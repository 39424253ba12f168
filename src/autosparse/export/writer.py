"""Writes the sparse file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from autosparse.common.files import refuse_existing, whole_file
from autosparse.export.format import KEY, NAMES, Entry, Layout, check_name, digest, encode, write_layout
from autosparse.export.states import as_integers, narrow, plain_state, precision


def save_sparse(
    model: nn.Module | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    force: bool = False,
) -> None:
    """Save a finished model or a plain state_dict so that zeros take (nearly) no room; `load_sparse` gives the same bits.

    `dtype` ("float16", "bfloat16", "int8") narrows the weights in the file; they are loaded in the model's own precision again.
    """
    widest = precision(dtype)
    write_sparse(model, Path(path), lambda name: widest, force)


def write_sparse(
    model: nn.Module | Mapping[str, Any], target: Path, widest_of: Callable[[str], torch.dtype | None], force: bool = False
) -> None:
    """`save_sparse` with a precision of its own for every tensor."""
    refuse_existing(target, force)
    state = plain_state(model)
    layout = Layout({}, state.tied)
    parts: dict[str, Tensor] = {}
    for name in state.tied:
        check_name(name)
    for name, tensor in state.tensors.items():
        if tensor.dtype not in NAMES:
            raise ValueError(f"{name} is {tensor.dtype}, which the format does not hold; it holds {', '.join(NAMES.values())}")
        widest = widest_of(name)
        stored, scales = as_integers(tensor) if widest == torch.int8 else (narrow(name, tensor, widest), None)
        pieces = encode(check_name(name), stored, scales)
        kind = "dense" if name in pieces else "sparse"
        layout.tensors[name] = Entry(kind, tuple(tensor.shape), NAMES[tensor.dtype], NAMES[stored.dtype], digest(pieces))
        parts |= pieces
    with whole_file(target, force) as unfinished:
        safetensors.torch.save_file(parts, unfinished, metadata={KEY: write_layout(layout)})
