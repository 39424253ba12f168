"""The fields a method gets when it replaces that of a recipe: how sparse, how often, by which penalty."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from autosparse.methods import METHODS, Rounds, describe

# Their sparsity follows from these. Found on the digits with one seed, in runs of 390 steps, for a sparsity near 90 %.
LEARNED: dict[str, dict[str, Any]] = {
    "dst": {"penalty_weight": 4e-3},  # from 1e-2 on it diverges there
    "ltp": {"penalty_weight": 1.4e-4, "temperature": 0.1},
    "cs": {"s_init": 0.0, "penalty_weight": 1e-6, "train_ticket": True},
    "scl": {"penalty_weight": 0.25},
    "dns": {"c_rate": 1.75},
    "gdp": {"penalty_weight": 2.0, "theta_init": 0.5},
}
# Longer runs get the methods' own defaults, which were made for ImageNet.
SHORT_RUN = 5_000
# Most rounds of a method that trains in rounds; all rounds together share the epochs of the recipe.
ROUNDS = 2
# Least number of mask updates in a run, where the default counts hundreds of steps or several epochs.
UPDATES = 30
# What AutoSparse and STR share: a recipe of one says it for the other too.
THRESHOLD_FIELDS = ("s_init", "start_sparsity", "g", "threshold", "target_ramp", "target_sparsity")
THRESHOLD_METHODS = ("autosparse", "str")


def sparsity_field(name: str) -> str | None:
    """The field that says how sparse the method ends, or None where the loss decides."""
    describe(name)
    fields = {field.name for field in dataclasses.fields(METHODS[name])}
    return next((field for field in ("target_sparsity", "sparsity") if field in fields), None)


def has_field(name: str, field: str) -> bool:
    """Whether the method's config has this field."""
    return any(field == candidate.name for candidate in dataclasses.fields(METHODS[name]))


def interval(default: int, length: int, epoch: int = 1) -> int:
    """An interval that leaves room for UPDATES in a run of this length: not below an epoch, not above the default."""
    return min(default, max(epoch, length // UPDATES))


def method_block(
    name: str, replaced: Mapping[str, Any], sparsity: float | None, epochs: int, steps_per_epoch: Callable[[], int]
) -> dict[str, Any]:
    """The `method` block of `name` in place of `replaced`, the recipe's block; the recipe's method keeps its fields."""
    field = sparsity_field(name)
    if name == replaced["name"]:
        block = dict(replaced)
        if field and sparsity is not None:
            block[field] = sparsity
            block.pop("autotune", None)  # auto-tuning and a target both decide how sparse the run becomes
        return block
    block = {"name": name}
    if field:
        goal = sparsity if sparsity is not None else replaced.get("target_sparsity", replaced.get("sparsity"))
        if goal is None:
            raise ValueError(f"the recipe says no sparsity that {name} could aim at; add --sparsity, such as --sparsity 0.8")
        if name in THRESHOLD_METHODS and replaced["name"] in THRESHOLD_METHODS:
            block |= {shared: replaced[shared] for shared in THRESHOLD_FIELDS if shared in replaced}
        block[field] = goal
    block |= _scaled(name, epochs, steps_per_epoch)
    return block | _rounds(block, epochs)


def _rounds(block: Mapping[str, Any], epochs: int) -> dict[str, Any]:
    """Of a method that trains in rounds, as many as divide the epochs."""
    fields = {name: value for name, value in block.items() if name != "name"}
    cls = METHODS[block["name"]]
    if not issubclass(cls, Rounds):
        return {}
    most = min(cls().rounds, ROUNDS)
    choices = range(most, 0, -1)
    return {"rounds": next((n for n in choices if epochs % cls(**{**fields, "rounds": n}).traits.rounds == 0), most)}


def _scaled(name: str, epochs: int, steps_per_epoch: Callable[[], int]) -> dict[str, Any]:
    """Fields that depend on how long the run is; the data is opened only where its length matters."""
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(METHODS[name])}
    if name in LEARNED:
        return dict(LEARNED[name]) if epochs * steps_per_epoch() <= SHORT_RUN else {}
    if isinstance(defaults.get("update_epochs"), int):
        return {"update_epochs": interval(defaults["update_epochs"], epochs)}
    every = defaults.get("update_every")
    if isinstance(every, int) and every > 1:
        steps = steps_per_epoch()
        return {"update_every": interval(every, epochs * steps, steps)}
    return {}


def optimizer_block(method: Mapping[str, Any], replaced: str, block: Mapping[str, Any]) -> dict[str, Any]:
    """The `optimizer` block under `method`: its decay of thresholds is for those of the recipe's method, without a target."""
    same_thresholds = method["name"] == replaced or {method["name"], replaced} <= set(THRESHOLD_METHODS)
    if same_thresholds and method.get("target_sparsity") is None:
        return dict(block)
    return {key: value for key, value in block.items() if not key.startswith("threshold_decay")}
