"""Writes the sparse file: where a weight's bits are not all zero, and the weights there, one after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from autosparse.common.files import refuse_existing, whole_file
from autosparse.common.warnings import warn
from autosparse.export.format import (
    BITS,
    BLOCKS,
    FLOATS,
    KEY,
    MASK,
    NAMES,
    VALUES,
    Entry,
    Layout,
    check_name,
    digest,
    write_layout,
)
from autosparse.export.states import compact, narrow, plain_state, precision

HEADER = 150  # bytes of safetensors' header that the two further parts of a sparse tensor take, beside their names


def save_sparse(
    model: nn.Module | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    force: bool = False,
) -> None:
    """Save a finished model or a plain state_dict so that zeros take (nearly) no room; `load_sparse` gives the same bits.

    `dtype` ("fp16", "bf16") narrows the weights in the file; they are loaded in the model's own precision again.
    """
    target, widest = Path(path), precision(dtype)
    refuse_existing(target, force)
    state = plain_state(model)
    layout = Layout({}, state.tied)
    parts: dict[str, Tensor] = {}
    for name in state.tied:
        check_name(name)
    for name, tensor in state.tensors.items():
        if tensor.dtype not in NAMES:
            raise ValueError(f"{name} is {tensor.dtype}, which the format does not hold; it holds {', '.join(NAMES.values())}")
        stored = narrow(name, tensor, widest)
        pieces = _pieces(check_name(name), stored)
        kind = "sparse" if len(pieces) > 1 else "dense"
        layout.tensors[name] = Entry(kind, tuple(tensor.shape), NAMES[tensor.dtype], NAMES[stored.dtype], digest(pieces))
        parts |= pieces
    with whole_file(target, force) as unfinished:
        safetensors.torch.save_file(parts, unfinished, metadata={KEY: write_layout(layout)})


def _pieces(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Blocks, mask and values, or the tensor itself where that takes less room."""
    if NAMES[tensor.dtype] not in FLOATS or not tensor.ndim:
        return {name: compact(tensor)}
    flat = tensor.flatten()
    # by their bits: -0.0 and every kind of NaN are kept as they are
    bits = flat.view(BITS[tensor.itemsize])
    active = (bits != 0).numpy()
    mask = np.packbits(active, bitorder="little")
    blocks = np.packbits(mask != 0, bitorder="little")
    mask = mask[mask != 0]
    count = int(np.count_nonzero(active))
    size = blocks.nbytes + mask.nbytes + count * tensor.itemsize + HEADER + 2 * len(name)
    if size >= tensor.nbytes:
        return {name: compact(tensor)}
    negative = count - int(torch.count_nonzero(flat))
    if negative > 0.01 * tensor.numel():
        warn(f"{name} has {negative} weights of -0.0, which are stored to stay exact: add 0.0 to it, and they cost nothing")
    values = bits[torch.from_numpy(active)].view(tensor.dtype)
    return {name + BLOCKS: torch.from_numpy(blocks), name + MASK: torch.from_numpy(mask), name + VALUES: values}
