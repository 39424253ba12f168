"""Recipes: their code beside their YAML; `load`, `dump` and `check` are all that most callers need."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosparse.recipes.loading import check_recipe as check
    from autosparse.recipes.loading import dump_recipe as dump
    from autosparse.recipes.loading import load_recipe as load

__all__ = ["check", "dump", "load"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: listing recipes must not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autosparse.recipes import loading

    return getattr(loading, f"{name}_recipe")
