"""Thresholds moved out of the groups of a finished optimizer, for frameworks that make optimizer and schedules in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.optim import Optimizer

from autosparse.common.words import few
from autosparse.sparsifier import Sparsifier

# what torch's schedulers keep for every group
_PER_GROUP = ("base_lrs", "_last_lr", "lr_lambdas", "min_lrs", "max_lrs", "base_momentums", "max_momentums")


def move_thresholds(
    sp: Sparsifier, optimizers: Sequence[Optimizer], schedulers: Iterable[Any] = (), decay: float | None = None
) -> list[Optimizer]:
    """Give thresholds a group beside the group of their weights, with its options; groups of thresholds alone stay.

    Returns the optimizers that train sparsified weights. `decay` replaces the method's own choice of the thresholds' decay.
    """
    schedulers = list(schedulers)
    thresholds = {id(threshold) for threshold in sp.thresholds()}
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
    alone = {number for _, group in groups if _ids(group) <= thresholds for number in _ids(group)}
    moves: dict[int, dict[str, Any]] = {}
    lost = []
    for layer in sp.layers:
        named = layer.parametrization.named_parameters(prefix=layer.name)
        learned = {name: parameter for name, parameter in named if id(parameter) not in alone}
        home = next((number for number, (_, group) in enumerate(groups) if id(layer.stored) in _ids(group)), None)
        if learned and home is None:
            lost.append(layer.name)
        elif home is not None:
            moves.setdefault(home, {}).update(learned)
    if lost:
        raise ValueError(
            f"no optimizer trains {few(lost, 3)}: their thresholds cannot move: "
            "make the optimizer in configure_optimizers from self.parameters(), or leave these layers dense with exclude=..."
        )
    moved = {id(parameter) for learned in moves.values() for parameter in learned.values()}
    for _, group in groups:
        staying = [number for number, parameter in enumerate(group["params"]) if id(parameter) not in moved]
        for key in ("params", "param_names"):
            if key in group:
                group[key] = [group[key][number] for number in staying]
    for home, learned in moves.items():
        optimizer, source = groups[home]
        if learned:
            _add_group(sp, optimizer, source, learned, schedulers, decay)
    homes = {id(groups[home][0]) for home in moves}
    return [optimizer for optimizer in optimizers if id(optimizer) in homes]


def _add_group(
    sp: Sparsifier,
    optimizer: Optimizer,
    source: dict[str, Any],
    learned: dict[str, Any],
    schedulers: list[Any],
    decay: float | None,
) -> None:
    options = {key: value for key, value in source.items() if key not in ("params", "param_names")}
    if decay is None:
        decay = sp.method.traits.learned_decay
        decay = source.get("weight_decay", 0.0) if decay is None else decay
    params = list(learned.items()) if "param_names" in source else list(learned.values())
    count, number = len(optimizer.param_groups), [id(group) for group in optimizer.param_groups].index(id(source))
    # coupled decay under Adam is normalised away; other optimizers ignore the key
    optimizer.add_param_group({**options, "params": params, "weight_decay": decay, "decoupled_weight_decay": True})
    for scheduler in schedulers:
        if getattr(scheduler, "optimizer", optimizer) is optimizer:
            _extend(scheduler, count, number)


def _extend(scheduler: Any, count: int, number: int) -> None:
    """Let a scheduler, and those inside it, treat the new last group as the one at `number`."""
    for inner in getattr(scheduler, "_schedulers", ()):
        _extend(inner, count, number)
    for name in _PER_GROUP:
        values = getattr(scheduler, name, None)
        if isinstance(values, list) and len(values) == count:  # schedulers may share a list: each grows once
            values.append(values[number])


def _ids(group: dict[str, Any]) -> set[int]:
    return {id(parameter) for parameter in group["params"]}
