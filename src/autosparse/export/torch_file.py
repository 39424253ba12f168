"""The plainest file: a dense state_dict with the model's own keys, which torch alone reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autosparse.common.files import refuse_existing, whole_file
from autosparse.export.states import State, compact, narrow, plain_state, precision


def save_torch(
    model: nn.Module | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    force: bool = False,
) -> None:
    """Save a state_dict for `model.load_state_dict(torch.load(path, weights_only=True))`; zeros take their room."""
    target, widest = Path(path), precision(dtype)
    refuse_existing(target, force)
    state = plain_state(model)
    tensors = {name: compact(narrow(name, tensor, widest)) for name, tensor in state.tensors.items()}
    with whole_file(target, force) as unfinished:
        torch.save(State(tensors, state.tied).all(), unfinished)
