"""What the paper printed, row by row, and which recipe stands for a row."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autosparse.recipes.loading import load_recipe, recipe_names
from autosparse.recipes.recipe import Recipe

TABLES = {
    "table1": ("resnet50_main", "ResNet-50 on ImageNet-1K"),
    "table2": ("resnet50_back_sparse", "ResNet-50 with sparse weight gradients"),
    "table3": ("mobilenetv1", "MobileNetV1 on ImageNet-1K"),
    "table4": ("wmt_transformer", "Transformer on WMT14 English-German"),
    "table5": ("autotune", "AutoSparse with auto-tuned alpha"),
}


@dataclass(frozen=True)
class PaperRow:
    """A row of one of the paper's tables; accuracies in per cent, BLEU for translation; None where it printed nothing."""

    table: str
    place: int
    label: str
    setting: str
    base: float
    accuracy: float
    drop: float | None
    sparsity: float
    train_fraction: float | None
    test_fraction: float | None


@cache
def paper_numbers() -> dict[str, Any]:
    """The content of paper_tables.json."""
    text = resources.files("autosparse.experiments").joinpath("paper_tables.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def rows_of(item: str) -> list[PaperRow]:
    """The rows of table1 to table5, in the paper's order."""
    table = TABLES[item][0]
    return [_row(table, place, row) for place, row in enumerate(paper_numbers()["tables"][table]["rows"])]


def _row(table: str, place: int, row: dict[str, Any]) -> PaperRow:
    return PaperRow(
        table=table,
        place=place,
        label=row.get("method") or row["network"],
        setting=_setting(row),
        base=row["base"] if "base" in row else row["bleu_dense"],
        accuracy=row["top1_sparse"] if "top1_sparse" in row else row["bleu_sparse"],
        drop=row.get("drop_pct"),
        sparsity=row["sparsity_pct"],
        train_fraction=row.get("train_flops_x"),
        test_fraction=row.get("test_flops_x"),
    )


def _setting(row: dict[str, Any]) -> str:
    if "eps0_eps1_eps2" in row:
        return f"eps = {', '.join(map(str, row['eps0_eps1_eps2']))}"
    if "weight_decay" in row:  # its comment, "our implementation", is the authors'
        return f"s0={row['s_init']}, decay {row['weight_decay']}"
    return str(row["comment"])


@cache
def recipes_of_rows() -> dict[tuple[str, int], Recipe]:
    """The packaged recipe of every row, by table and place."""
    loaded = [load_recipe(name) for name in recipe_names()]
    return {(recipe.paper.table, recipe.paper.row): recipe for recipe in loaded if recipe.paper}


def recipe_of(table: str, place: int) -> Recipe:
    """The recipe that stands for a row of the paper."""
    return recipes_of_rows()[table, place]


def network_of(recipe: Recipe) -> str:
    """resnet50, mobilenet or wmt14: the first word of a paper recipe's name; `<network>-dense` is its baseline."""
    return recipe.name.partition("-")[0]
