"""Optimizer groups: thresholds apart from the weights, with a decay of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def build_groups(
    model: nn.Module,
    thresholds: Sequence[nn.Parameter],
    groups: Iterable[Any] | None,
    weight_decay: float | None,
    threshold_decay: float | None,
) -> list[dict[str, Any]]:
    """The user's groups (or one of all parameters) without the thresholds, then the thresholds' own group."""
    apart = {id(threshold) for threshold in thresholds}
    groups = [{"params": list(model.parameters())}] if groups is None else list(groups)
    if groups and not isinstance(groups[0], Mapping):
        groups = [{"params": groups}]
    general, own = _decay("weight_decay", weight_decay), _decay("threshold_decay", threshold_decay)
    built, named = [], False
    for group in groups:
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        named |= any(isinstance(each, tuple) for each in params)
        kept = [each for each in params if id(each[1] if isinstance(each, tuple) else each) not in apart]
        if kept:
            built.append({**general, **group, "params": kept})
    if thresholds:
        # torch wants names for all parameters or for none
        learned = [each for each in model.named_parameters() if id(each[1]) in apart] if named else list(thresholds)
        # Coupled decay under Adam is normalised away; SGD and AdamW ignore the key.
        built.append({"params": learned, **own, "decoupled_weight_decay": True})
    return built


def _decay(name: str, value: float | None) -> dict[str, float]:
    """A group's decay; None leaves it to the optimizer's own default."""
    if value is not None and value < 0:
        raise ValueError(f"{name} = {value}; it must be at least 0")
    return {} if value is None else {"weight_decay": value}


def find_groups(optimizers: Sequence[Optimizer], thresholds: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """The optimizers' groups that hold any of the thresholds."""
    wanted = {id(threshold) for threshold in thresholds}
    everything = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [group for group in everything if any(id(each) in wanted for each in group["params"])]


def check_optimizers(optimizers: Sequence[Optimizer], thresholds: Mapping[str, nn.Parameter]) -> None:
    """Every threshold must be trained by one of the optimizers."""
    held = {id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
    missing = [name for name, threshold in thresholds.items() if id(threshold) not in held]
    if missing:
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise ValueError(
            f"the optimizer lacks {len(missing)} of {len(thresholds)} learned thresholds ({shown}): "
            "make it after sparsify, from sp.param_groups(weight_decay=...)"
        )
