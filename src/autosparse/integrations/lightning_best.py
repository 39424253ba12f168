"""Lightning's best checkpoint and early stopping, chosen among models at the target of a sparse run."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor

from autosparse.common.warnings import warn
from autosparse.sparsifier import Sparsifier

_TIMES = (None, "epoch", "step")  # a checkpoint that monitors these keeps the newest, not the best


def compare_at_target(trainer: Trainer, sp: Sparsifier) -> None:
    """Let a model from before the target count as the worst, and let patience begin at the target."""
    for saves in _best_checkpoints(trainer):
        _override(saves, "check_monitor_top_k", partial(_is_saved, sp, saves))
        _override(saves, "_update_best_and_save", partial(_save, sp, saves))
    for stops in _callbacks(trainer, EarlyStopping):
        _override(stops, "_evaluate_stopping_criteria", partial(_stops, sp, stops))


def release(trainer: Trainer) -> None:
    """Leave the callbacks as they were found: a function of ours could not be pickled."""
    for callback in (*_callbacks(trainer, ModelCheckpoint), *_callbacks(trainer, EarlyStopping)):
        for name in ("check_monitor_top_k", "_update_best_and_save", "_evaluate_stopping_criteria"):
            vars(callback).pop(name, None)


def warn_if_best_is_before_target(trainer: Trainer) -> None:
    for saves in _best_checkpoints(trainer):
        score = saves.best_model_score
        if saves.best_model_path and score is not None and math.isinf(float(score)):
            warn(
                f"no checkpoint of ModelCheckpoint(monitor={saves.monitor!r}) has the run's final sparsity: "
                f"{saves.best_model_path} is only the last one before it. Validate once more after the target is reached."
            )


def _callbacks(trainer: Trainer, kind: type[Any]) -> list[Any]:
    return [callback for callback in trainer.callbacks if isinstance(callback, kind)]  # type: ignore[attr-defined]


def _best_checkpoints(trainer: Trainer) -> list[ModelCheckpoint]:
    return [saves for saves in _callbacks(trainer, ModelCheckpoint) if saves.monitor not in _TIMES]


def _override(callback: Any, name: str, action: Any) -> None:
    vars(callback)[name] = partial(action, getattr(type(callback), name))


def _worst(saves: ModelCheckpoint) -> Tensor:
    return torch.tensor(math.inf if saves.mode == "min" else -math.inf)


def _is_saved(sp: Sparsifier, saves: ModelCheckpoint, check: Any, trainer: Trainer, current: Tensor | None = None) -> bool:
    """Before the target a model takes the place of an older one from before it: runs are resumed from such checkpoints."""
    if sp.at_target or current is None:
        return bool(check(saves, trainer, current))
    scores = [float(score) for score in saves.best_k_models.values()]
    return saves.save_top_k == -1 or len(scores) < saves.save_top_k or float(_worst(saves)) in scores


def _save(sp: Sparsifier, saves: ModelCheckpoint, save: Any, current: Tensor, *args: Any) -> None:
    save(saves, current if sp.at_target else _worst(saves).to(current.device), *args)


def _stops(sp: Sparsifier, stops: EarlyStopping, evaluate: Any, current: Tensor) -> tuple[bool, str | None]:
    if sp.at_target or not bool(torch.isfinite(current)):
        stop, reason = evaluate(stops, current)
        return stop, reason
    return False, None
