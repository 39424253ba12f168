"""Recipes by name or file, with overrides, checked; and back to YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autosparse.recipes import overrides as changes
from autosparse.recipes.errors import lines_of
from autosparse.recipes.files import find_recipe, merged_block, recipe_names, recipe_text
from autosparse.recipes.recipe import Recipe
from autosparse.recipes.yaml_text import read_block, write_block

__all__ = ["check_recipe", "differences", "dump_recipe", "load_recipe", "read_recipe", "recipe_names", "recipe_text"]


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by its name or from a file, with `a.b=c` overrides; all mistakes are reported at once."""
    path = find_recipe(name_or_path)
    block = changes.apply(merged_block(path), overrides)
    return check_recipe(block, f"recipe {name_or_path}")


def read_recipe(text: str, source: str, overrides: Sequence[str] = ()) -> Recipe:
    """A whole recipe from its YAML, such as a checkpoint's copy, with overrides."""
    return check_recipe(changes.apply(read_block(text, source), overrides), source)


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
    before, after = _flat(a.model_dump(mode="json")), _flat(b.model_dump(mode="json"))
    lines = []
    for path in [*before, *(path for path in after if path not in before)]:
        old, new = before.get(path, "(not given)"), after.get(path, "(not given)")
        if old != new:
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
