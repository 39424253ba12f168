"""The fields of a method that takes the place of a recipe's own."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

import autosparse
from autosparse.experiments import method_fields as methods
from autosparse.experiments.method_fields import interval, method_block, optimizer_block, sparsity_field

from .parts import SMALL, small

OWN = SMALL["method"]


def unopened() -> NoReturn:
    raise AssertionError("the data was opened though its length does not matter")


def made(
    name: str, sparsity: float | None = 0.9, own: dict[str, Any] = OWN, epochs: int = 30, steps: int = 13
) -> dict[str, Any]:
    return method_block(name, own, sparsity, epochs, lambda: steps)


@pytest.mark.parametrize("name", autosparse.list_methods())
def test_every_method_gets_a_block_that_a_recipe_accepts(name: str) -> None:
    block = made(name)
    assert small(method=block).method["name"] == name
    field = sparsity_field(name)
    assert (field is None) == (name in methods.LEARNED or name in ("keep", "gradmax"))
    if field:
        assert block[field] == 0.9


def test_intervals_leave_room_for_thirty_updates_and_never_exceed_the_default() -> None:
    assert interval(100, 390) == 13
    assert interval(100, 12) == 1
    assert interval(100, 12, 4) == 4  # RigL does not train in the steps in which it rewires: once an epoch is often enough
    assert interval(100, 500_000) == 100
    assert made("rigl")["update_every"] == 13
    assert made("rigl", steps=5005, epochs=100)["update_every"] == 100
    assert made("mest")["update_epochs"] == 1
    assert made("mest", epochs=150)["update_epochs"] == 5


def test_data_is_opened_only_where_its_length_matters() -> None:
    for name in ("str", "snip", "mest", "topkast"):
        method_block(name, OWN, 0.9, 30, unopened)
    with pytest.raises(AssertionError, match="data was opened"):
        method_block("rigl", OWN, 0.9, 30, unopened)


def test_the_recipes_own_method_keeps_its_fields() -> None:
    assert made("autosparse") == {**OWN, "target_sparsity": 0.9}
    assert made("autosparse", sparsity=None) == OWN
    rigl = {"name": "rigl", "sparsity": 0.8, "update_every": 7}
    assert made("rigl", own=rigl) == {**rigl, "sparsity": 0.9}


def test_a_target_takes_the_place_of_auto_tuning() -> None:
    assert made("autosparse", own={"name": "autosparse", "autotune": {"epochs": 3}}) == {
        "name": "autosparse",
        "target_sparsity": 0.9,
    }


def test_str_and_autosparse_share_what_both_have() -> None:
    assert made("str") == {"name": "str", "start_sparsity": 0.2, "target_sparsity": 0.9}
    assert made("optg") == {"name": "optg", "sparsity": 0.9}


def test_without_a_sparsity_the_recipes_own_is_meant() -> None:
    assert made("rigl", sparsity=None)["sparsity"] == 0.8
    with pytest.raises(ValueError, match=r"no sparsity that rigl could aim at; add --sparsity"):
        made("rigl", sparsity=None, own={"name": "autosparse"})


def test_penalties_found_on_short_runs_are_not_used_in_long_ones() -> None:
    assert made("dst") == {"name": "dst", "penalty_weight": 4e-3}
    assert made("dst", steps=5005, epochs=100) == {"name": "dst"}


def test_a_decay_of_thresholds_stays_with_the_thresholds_it_was_made_for() -> None:
    decayed = {"lr": 0.1, "weight_decay": 1e-4, "threshold_decay_total": 0.5}
    for name in ("optg", "dst", "scl", "rigl"):
        assert optimizer_block({"name": name}, "autosparse", decayed) == {"lr": 0.1, "weight_decay": 1e-4}
    assert optimizer_block({"name": "str"}, "autosparse", decayed) == decayed
    assert optimizer_block({"name": "dst"}, "dst", decayed) == decayed
    steered = {"name": "autosparse", "target_sparsity": 0.9}
    assert "threshold_decay_total" not in optimizer_block(steered, "autosparse", decayed)
