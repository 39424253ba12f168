"""A small recipe and results for the tests of grids and tables."""

from __future__ import annotations

from typing import Any

from autosparse.recipes.recipe import Recipe

SMALL: dict[str, Any] = {
    "name": "small",
    "model": {"name": "small_conv", "arguments": {"width": 4}},
    "data": {"source": "digits", "batch_size": 64, "channels": 1, "classes": 10},
    "method": {"name": "autosparse", "alpha": 0.5, "start_sparsity": 0.2, "target_sparsity": 0.8},
    "optimizer": {"lr": 0.1, "weight_decay": 1e-4},
    "train": {"epochs": 30, "dense_beside": True},
}


def small(**changes: Any) -> Recipe:
    """The recipe with whole blocks replaced."""
    return Recipe.model_validate({**SMALL, **changes})


def result(accuracy: float, sparsity: float = 0.9, **others: Any) -> dict[str, Any]:
    """What a finished run leaves."""
    costs = {"train_fraction": 0.5, "test_fraction": 0.2, "seconds": 4.0}
    return {"accuracy": accuracy, "sparsity": sparsity, **costs, **others}
