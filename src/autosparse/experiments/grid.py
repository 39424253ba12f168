"""The grid of a comparison: one cell per run, one row per line of the table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosparse.experiments.method_fields import has_field, method_block, optimizer_block, sparsity_field
from autosparse.recipes.loading import check_recipe
from autosparse.recipes.method_block import DENSE
from autosparse.recipes.overrides import merged
from autosparse.recipes.recipe import Recipe
from autosparse.recipes.yaml_text import read_value

Setting = tuple[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run: the name of its folder and the recipe that decides it."""

    name: str
    recipe: Recipe


@dataclass(frozen=True)
class Row:
    """One line of the table: the runs that differ in nothing but the seed, and the dense runs beside them."""

    method: str
    sparsity: float | None
    varied: tuple[Setting, ...]
    cells: tuple[Cell, ...]
    bases: tuple[Cell, ...]


def parse_variation(text: str) -> list[Setting]:
    """`a.b=v1,v2` as [("a.b", v1), ("a.b", v2)]; values are read as YAML."""
    path, equals, values = text.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", path) or not values.strip():
        raise ValueError(f"--vary {text} is not of the form a.b=v1,v2, such as method.schedule=cosine,sigmoid")
    parsed = read_value(f"[{values}]", f"--vary {text}")
    if path == "seed":
        raise ValueError("--vary seed=...: use --seeds, the number of seeds from the recipe's own on")
    return [(path, value) for value in parsed]


def with_value(content: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The nested mapping with the value at a dotted path replaced or added."""
    for step in reversed(path.split(".")):
        value = {step: value}
    return merged(content, value)


def grid(
    recipe: Recipe,
    methods: Sequence[str],
    sparsities: Sequence[float],
    variations: Sequence[Sequence[Setting]],
    seeds: int,
    steps_per_epoch: Callable[[Recipe], int],
) -> list[Row]:
    """The dense row, then every method at every sparsity under every combination of the variations."""
    _check(methods, sparsities, variations, seeds)
    rows: dict[str, Row] = {}
    for method in methods or [recipe.method["name"]]:
        if method == DENSE:
            continue
        # what a method does not have cannot be varied in it: it gets one row where others get several
        axes = [axis for axis in variations if _applies(axis[0][0], method)]
        goals: Sequence[float | None] = [None] if sparsity_field(method) is None else sparsities or [None]
        for sparsity in goals:
            for varied in itertools.product(*axes):
                _add(rows, _row(recipe, method, sparsity, varied, seeds, steps_per_epoch))
    dense: dict[str, Row] = {}
    for row in rows.values():
        dense.setdefault(row.bases[0].name, Row(DENSE, None, _shared(row.varied), row.bases, row.bases))
    if not rows:
        bases = _dense(recipe.model_dump(mode="json"), (), seeds)
        dense[bases[0].name] = Row(DENSE, None, (), bases, bases)
    return [*dense.values(), *rows.values()]


def _shared(varied: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """What a variation changes in the dense run too, which has no method and no thresholds."""
    return tuple(setting for setting in varied if not setting[0].startswith(("method.", "optimizer.threshold_decay")))


def _add(rows: dict[str, Row], row: Row) -> None:
    name = row.cells[0].name
    if name in rows and rows[name].cells != row.cells:
        raise ValueError(f"two variations would share the folder {name}: vary them in two comparisons")
    rows[name] = row


def _check(methods: Sequence[str], sparsities: Sequence[float], variations: Sequence[Sequence[Setting]], seeds: int) -> None:
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}; at least one seed is needed")
    for sparsity in sparsities:
        if not 0 < sparsity < 1:
            raise ValueError(f"--sparsity {sparsity}; allowed: between 0 and 1, 0.9 means 90 % zeros")
    for axis in variations:
        path = axis[0][0]
        named = [method for method in methods if method != DENSE]
        if path in ("method", "method.name"):
            raise ValueError(f"--vary {path}=...: use --methods")
        if named and not any(_applies(path, method) for method in named):
            raise ValueError(f"--vary {path}: none of {', '.join(named)} has that field")


def _applies(path: str, method: str) -> bool:
    block, _, rest = path.partition(".")
    return block != "method" or has_field(method, rest.partition(".")[0])


def _row(
    recipe: Recipe,
    method: str,
    sparsity: float | None,
    varied: tuple[Setting, ...],
    seeds: int,
    steps_per_epoch: Callable[[Recipe], int],
) -> Row:
    shared = _shared(varied)
    content = recipe.model_dump(mode="json")
    for path, value in shared:
        content = with_value(content, path, value)
    bases = _dense(content, shared, seeds)
    base = bases[0].recipe
    block = method_block(method, content["method"], sparsity, base.train.epochs, lambda: steps_per_epoch(base))
    content = {**content, "method": block, "optimizer": optimizer_block(block, content["method"]["name"], content["optimizer"])}
    for path, value in varied:
        content = with_value(content, path, value)
    field = sparsity_field(method)
    goal = content["method"].get(field) if field else None
    cells = _seeded(content, _name(method, goal, varied), recipe.seed, seeds)
    return Row(method, goal, varied, cells, bases)


def _dense(content: Mapping[str, Any], shared: tuple[Setting, ...], seeds: int) -> tuple[Cell, ...]:
    return _seeded({**content, "method": {"name": DENSE}}, _name(DENSE, None, shared), content["seed"], seeds)


def _seeded(content: Mapping[str, Any], name: str, first: int, seeds: int) -> tuple[Cell, ...]:
    return tuple(cell(content, f"{name}-seed{seed}", seed) for seed in range(first, first + seeds))


def cell(content: Mapping[str, Any], name: str, seed: int) -> Cell:
    """A run of the content under its own name; the dense run is a cell of its own and no row of the paper is meant."""
    block = {**content["train"], "dense_beside": False}
    whole = {**content, "name": name, "seed": seed, "train": block, "paper": None}
    return Cell(name, check_recipe(whole, name))


def _name(method: str, sparsity: float | None, varied: Sequence[Setting]) -> str:
    parts = [method, *([f"{sparsity:g}"] if sparsity is not None else [])]
    parts += [f"{path.rpartition('.')[2]}={value}" for path, value in varied]
    return re.sub(r"[^\w.=+-]+", "_", "-".join(parts))
