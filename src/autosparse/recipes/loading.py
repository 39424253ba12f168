"""Recipes by name or file, with overrides, checked; and back to YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autosparse.recipes import overrides as changes
from autosparse.recipes.errors import lines_of
from autosparse.recipes.files import find_recipe, merged_block, recipe_names, recipe_text
from autosparse.recipes.method_block import complete_block, of_older_version
from autosparse.recipes.recipe import Recipe
from autosparse.recipes.yaml_text import read_block, write_block

__all__ = [
    "check_recipe", "completed", "differences", "dump_recipe", "load_recipe", "read_recipe", "recipe_names", "recipe_text",
]  # fmt: skip


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = (), *, of_run: bool = False) -> Recipe:
    """A recipe by its name or from a file, with `a.b=c` overrides; all mistakes are reported at once.

    `of_run`: it lies in a run's folder, where an older version may have written it.
    """
    path = find_recipe(name_or_path)
    block = merged_block(path)
    return check_recipe(changes.apply(_as_written(block) if of_run else block, overrides), f"recipe {name_or_path}")


def read_recipe(text: str, source: str, overrides: Sequence[str] = ()) -> Recipe:
    """The whole recipe of a run from its YAML, such as a checkpoint's copy, with overrides."""
    return check_recipe(changes.apply(_as_written(read_block(text, source)), overrides), source)


def _as_written(block: dict[str, Any]) -> dict[str, Any]:
    method = block.get("method")
    return {**block, "method": of_older_version(method)} if isinstance(method, dict) else block


def completed(recipe: Recipe) -> Recipe:
    """The recipe with every field of its method, for the folder of a run."""
    return recipe.model_copy(update={"method": complete_block(recipe.method)})


def check_recipe(block: dict[str, Any], source: str) -> Recipe:
    """The Recipe of a plain block."""
    try:
        return Recipe.model_validate(block)
    except ValidationError as error:
        lines = lines_of(error, Recipe)
        if len(lines) == 1:
            raise ValueError(f"{source}: {lines[0]}") from None
        raise ValueError(f"{source} has {len(lines)} mistakes:" + "".join(f"\n  - {line}" for line in lines)) from None


def dump_recipe(recipe: Recipe) -> str:
    """YAML with every value, defaults too, that loads back as the same recipe."""
    return write_block(recipe.model_dump(mode="json"))


def differences(a: Recipe, b: Recipe) -> list[str]:
    """A line for every value in which b differs from a, such as 'train.epochs: 10 -> 12'."""
    before, after = (_flat(completed(recipe).model_dump(mode="json")) for recipe in (a, b))
    lines = []
    for path in [*before, *(path for path in after if path not in before)]:
        old, new = before.get(path, "(not given)"), after.get(path, "(not given)")
        if old != new and path != "method.preset":  # it only gives values to other fields
            lines.append(f"{path}: {old} -> {new}")
    return lines


def _flat(block: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in block.items():
        if isinstance(value, dict) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
