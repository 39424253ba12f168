"""Recipe files of 0.1.0 mean what they meant there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autosparse.common.precisions import SPELLINGS

from .command import json_of
from .plain_loops import FIXTURES

RECIPES = FIXTURES / "recipes"
EXPECTED: dict[str, Any] = json.loads((RECIPES / "expected.json").read_text())


def changes(old: Any, new: Any, path: str = "") -> list[str]:
    """Keys that went or have another value; new keys are welcome."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{path}{key} is gone" for key in old if key not in new]
        return gone + [line for key in old if key in new for line in changes(old[key], new[key], f"{path}{key}.")]
    # fp32 and bf16 are other spellings of what recipes say now
    same = SPELLINGS.get(old, old) == new if path.endswith("precision.") else old == new
    return [] if same and type(old) is type(new) else [f"{path[:-1]} was {old!r}, is {new!r}"]


def test_every_recipe_has_a_meaning() -> None:
    assert {path.stem for path in RECIPES.glob("*.yaml")} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe_means_the_same(name: str) -> None:
    assert changes(EXPECTED[name], json_of("recipes", str(RECIPES / f"{name}.yaml"))) == []
