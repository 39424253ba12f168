"""The size of the paper's experiments: as published, or small enough for two cores and no data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from autosparse.common.words import counted
from autosparse.experiments.grid import Cell, cell, with_value
from autosparse.experiments.paper.facts import PaperRow, recipe_of
from autosparse.recipes.loading import check_recipe, load_recipe
from autosparse.recipes.overrides import apply
from autosparse.recipes.recipe import Recipe

# A changed value of a recipe, by its dotted path.
Changes = Mapping[str, Any]


class Scale(ABC):
    """Turns rows and figures of the paper into runs."""

    name: str
    seeds: int
    # of a run whose sparsity follows from the decay of its thresholds; empty where that is the row's own run
    free_suffix: str

    def __init__(self, settings: Sequence[str] = (), seeds: int | None = None) -> None:
        self.settings = list(settings)
        if seeds is not None:
            self.seeds = seeds

    @abstractmethod
    def caption(self, networks: Sequence[str], seeds: int) -> str:
        """What a reader must know about the size, on every figure and table."""

    @abstractmethod
    def label(self, network: str) -> str:
        """The net that stands for resnet50, mobilenet or wmt14."""

    @abstractmethod
    def content(self, recipe: Recipe, sparsity: float | None) -> dict[str, Any]:
        """A paper recipe at this scale, as plain values; a sparsity is what its row printed, None lets the decay decide."""

    def row(self, row: PaperRow) -> tuple[Cell, ...]:
        """The runs of a row, one per seed."""
        recipe = recipe_of(row.table, row.place)
        content = self.content(recipe, row.sparsity / 100)
        return self._seeded(content, self.run_name(recipe))

    def ramped(self, row: PaperRow) -> tuple[Cell, ...]:
        """Runs of a row's method under the target controller, beside those of `row`; mostly none."""
        return ()

    def base(self, network: str) -> tuple[Cell, ...]:
        """The dense runs of a network."""
        recipe = load_recipe(f"{network}-dense")
        return self._seeded(self.content(recipe, None), self.run_name(recipe))

    def variant(self, table: str, place: int, suffix: str = "", changes: Changes | None = None) -> Cell:
        """One run of a row's recipe with other values, its sparsity left to the decay."""
        recipe = recipe_of(table, place)
        unchanged = self.content(recipe, None)
        content = changed(unchanged, changes or {})
        if content == unchanged:
            suffix = self.free_suffix
        return cell(content, f"{self.run_name(recipe)}{suffix}-seed{recipe.seed}", recipe.seed)

    def run_name(self, recipe: Recipe) -> str:
        return recipe.name

    def other(self, name: str) -> Cell:
        """One run of a recipe that has no row in the tables."""
        recipe = load_recipe(name)
        return cell(self.content(recipe, None), f"{self.run_name(recipe)}-seed{recipe.seed}", recipe.seed)

    @abstractmethod
    def decay(self, weight_decay: float) -> Changes:
        """The paper's decay of the thresholds, without any protection from it."""

    def _seeded(self, content: Mapping[str, Any], name: str) -> tuple[Cell, ...]:
        first = content["seed"]
        return tuple(cell(content, f"{name}-seed{seed}", seed) for seed in range(first, first + self.seeds))


class Full(Scale):
    """The paper's own recipes: ImageNet-1K, WMT14, GPUs."""

    name = "full"
    seeds = 1
    free_suffix = ""

    def caption(self, networks: Sequence[str], seeds: int) -> str:
        return f"full scale: {', '.join(map(self.label, networks))}, {counted(seeds, 'seed')}"

    def label(self, network: str) -> str:
        return {"resnet50": "ResNet-50", "mobilenet": "MobileNetV1", "wmt14": "Transformer"}[network]

    def content(self, recipe: Recipe, sparsity: float | None) -> dict[str, Any]:
        return check_recipe(apply(recipe.model_dump(mode="json"), self.settings), f"recipe {recipe.name}").model_dump(
            mode="json"
        )

    def decay(self, weight_decay: float) -> Changes:
        return {"optimizer.weight_decay": weight_decay}


def changed(content: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """The content with every change in turn."""
    for path, value in changes.items():
        content = with_value(content, path, value)
    return content
