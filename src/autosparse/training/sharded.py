"""Checkpoints of a sharded model: every rank writes its part, through torch.distributed.checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from autosparse.common.files import sync
from autosparse.common.warnings import warn
from autosparse.training import checkpoints
from autosparse.training.processes import Processes
from autosparse.training.sharded_reading import PlainPlanner, PlainReader

LAST, PREVIOUS, BEST, REST = "last", "previous", "best", "rest.pt"


def save(
    folder: Path, model: nn.Module, optimizer: Optimizer, rest: dict[str, Any], processes: Processes, *, best: bool = False
) -> None:
    """Write the parts into a folder of their own, which takes its name once all are there."""
    unfinished = folder / ".unfinished"
    processes.once(lambda: _clear(unfinished))
    weights, moments = get_state_dict(model, optimizer)
    state_dict_saver.save({"model": weights, "optimizer": moments}, checkpoint_id=unfinished)
    processes.once(lambda: _settle(folder, unfinished, rest, best))


def load(folder: Path, model: nn.Module, optimizer: Optimizer, processes: Processes) -> dict[str, Any] | None:
    """Bring the parts back; a damaged checkpoint is named and the one before taken."""
    present = processes.once(lambda: [name for name in (LAST, PREVIOUS) if (folder / name).exists()])
    for number, name in enumerate(present):
        try:
            rest = checkpoints.read(folder / name / REST)
            _check_sizes(folder / name, rest.get("parts", {}))
            weights, moments = get_state_dict(model, optimizer)
            state: dict[str, Any] = {"model": weights, "optimizer": moments}
            state_dict_loader.load(state, storage_reader=PlainReader(folder / name), planner=PlainPlanner())
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            return rest
        except (Exception, CheckpointException) as error:  # a missing or cut part fails in many ways inside torch
            message = f"the checkpoint {folder / name} is damaged: {_reason(error)}"
            if number + 1 == len(present):
                raise ValueError(message) from error
            warn(f"{message}; going back to {present[number + 1]}")
    return None


def _clear(unfinished: Path) -> None:
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)


def _settle(folder: Path, unfinished: Path, rest: dict[str, Any], best: bool) -> None:
    parts = {path.name: path.stat().st_size for path in unfinished.iterdir()}
    checkpoints.write(unfinished / REST, {**rest, "parts": parts})
    if best:
        shutil.rmtree(folder / BEST, ignore_errors=True)
        shutil.copytree(unfinished, folder / BEST)
    if (folder / LAST).exists():
        shutil.rmtree(folder / PREVIOUS, ignore_errors=True)
        (folder / LAST).rename(folder / PREVIOUS)
    unfinished.rename(folder / LAST)
    sync(folder)


def _reason(error: BaseException) -> str:
    """What happened, on the first rank that it happened to."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_sizes(folder: Path, parts: dict[str, int]) -> None:
    """Every part as long as it was; checkpoints of 0.1 do not say."""
    for name, size in parts.items():
        present = (folder / name).stat().st_size if (folder / name).exists() else 0
        if present != size:
            raise ValueError(f"its part {name} has {present} bytes of {size}")
