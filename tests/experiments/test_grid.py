"""The grid: which runs, under which names, beside which dense ones."""

from __future__ import annotations

from typing import Any

import pytest

from autosparse.experiments.grid import Row, grid, parse_variation, with_value

from .parts import small


def made(
    methods: str = "", sparsities: tuple[float, ...] = (), vary: tuple[str, ...] = (), seeds: int = 2, **recipe: Any
) -> list[Row]:
    axes = [parse_variation(text) for text in vary]
    return grid(small(**recipe), methods.split(), sparsities, axes, seeds, lambda _: 13)


def names(rows: list[Row]) -> list[str]:
    return [cell.name for row in rows for cell in row.cells]


def test_methods_times_sparsities_times_seeds_with_one_dense_run_a_seed() -> None:
    rows = made("autosparse rigl", (0.8, 0.95))
    assert names(rows) == [
        *("dense-seed0", "dense-seed1"),
        *("autosparse-0.8-seed0", "autosparse-0.8-seed1", "autosparse-0.95-seed0", "autosparse-0.95-seed1"),
        *("rigl-0.8-seed0", "rigl-0.8-seed1", "rigl-0.95-seed0", "rigl-0.95-seed1"),
    ]
    assert [row.sparsity for row in rows] == [None, 0.8, 0.95, 0.8, 0.95]
    for row in rows:
        assert row.bases == rows[0].cells
        for seed, cell in enumerate(row.cells):
            assert cell.recipe.name == cell.name
            assert cell.recipe.seed == seed
            assert not cell.recipe.train.dense_beside
            assert cell.recipe.method["name"] == row.method
    assert rows[4].cells[0].recipe.method == {"name": "rigl", "sparsity": 0.95, "update_every": 13}


def test_seeds_count_from_the_recipes_own() -> None:
    assert [cell.recipe.seed for cell in made("rigl", (0.9,), seed=5)[1].cells] == [5, 6]


def test_without_methods_the_recipes_own_is_run() -> None:
    assert names(made(seeds=1)) == ["dense-seed0", "autosparse-0.8-seed0"]
    assert names(made(seeds=1, method={"name": "dense"}, train={"epochs": 2})) == ["dense-seed0"]


def test_methods_that_learn_their_sparsity_have_one_row() -> None:
    assert names(made("dst rigl", (0.8, 0.9), seeds=1)) == ["dense-seed0", "dst-seed0", "rigl-0.8-seed0", "rigl-0.9-seed0"]


def test_a_recipes_threshold_decay_stays_with_its_thresholds() -> None:
    decayed = {
        "method": {"name": "autosparse", "autotune": {"epochs": 3}},
        "optimizer": {"lr": 0.1, "threshold_decay_total": 0.5},
    }
    totals = {
        row.method: row.cells[0].recipe.optimizer.threshold_decay_total
        for row in made("optg dst str", (0.9,), seeds=1, **decayed)
    }
    assert totals == {"dense": 0.5, "optg": None, "dst": None, "str": None}  # under a target STR's thresholds need none
    assert made("autosparse", (), seeds=1, **decayed)[1].cells[0].recipe.optimizer.threshold_decay_total == 0.5
    varied = made("dst", (), ("optimizer.threshold_decay_total=0.7",), seeds=1, **decayed)
    assert varied[1].cells[0].recipe.optimizer.threshold_decay_total == 0.7  # what the user asks for holds


def test_a_field_is_varied_in_the_methods_that_have_it() -> None:
    rows = made("autosparse rigl", (0.9,), ("method.schedule=cosine,linear", "method.alpha=0.5"), seeds=1)
    assert names(rows) == [
        *("dense-seed0", "autosparse-0.9-schedule=cosine-alpha=0.5-seed0"),
        *("autosparse-0.9-schedule=linear-alpha=0.5-seed0", "rigl-0.9-seed0"),
    ]
    assert rows[2].varied == (("method.schedule", "linear"), ("method.alpha", 0.5))
    assert rows[2].cells[0].recipe.method["schedule"] == "linear"


def test_what_the_dense_run_has_too_is_varied_in_both() -> None:
    rows = made("rigl", (0.9,), ("train.epochs=3,6", "method.drop_fraction=0.1,0.3"), seeds=1)
    assert names(rows)[:2] == ["dense-epochs=3-seed0", "dense-epochs=6-seed0"]
    assert len(rows) == 6
    for row in rows:
        assert row.bases[0].recipe.method == {"name": "dense"}
        assert row.bases[0].recipe.train.epochs == row.cells[0].recipe.train.epochs == dict(row.varied)["train.epochs"]


def test_decays_of_thresholds_share_one_dense_run() -> None:
    free = {"method": {"name": "str", "s_init": -20.0}, "optimizer": {"lr": 0.1, "threshold_decay_total": 1.0}}
    rows = made(vary=("optimizer.threshold_decay_total=2.0,2.5",), seeds=1, **free)
    assert names(rows) == ["dense-seed0", "str-threshold_decay_total=2.0-seed0", "str-threshold_decay_total=2.5-seed0"]
    assert [row.cells[0].recipe.optimizer.threshold_decay_total for row in rows] == [1.0, 2.0, 2.5]


def test_lists_are_values_too() -> None:
    assert parse_variation("sparsify.exclude=[fc],[fc, conv1]") == [
        ("sparsify.exclude", ["fc"]),
        ("sparsify.exclude", ["fc", "conv1"]),
    ]
    rows = made("str", (0.9,), ("sparsify.exclude=[fc],[fc, conv1]",), seeds=1)
    assert rows[3].cells[0].recipe.sparsify.exclude == ("fc", "conv1")
    assert "/" not in rows[3].cells[0].name
    assert " " not in rows[3].cells[0].name


def test_with_value_leaves_the_rest_alone() -> None:
    content = {"a": {"b": 1, "c": 2}, "d": 3}
    assert with_value(content, "a.b", 9) == {"a": {"b": 9, "c": 2}, "d": 3}
    assert with_value(content, "e.f.g", 9) == {**content, "e": {"f": {"g": 9}}}
    assert content == {"a": {"b": 1, "c": 2}, "d": 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": "riggl"}, "no method 'riggl'; did you mean 'rigl'"),
        ({"sparsities": (90.0,)}, "0.9 means 90 % zeros"),
        ({"seeds": 0}, "at least one seed"),
        ({"vary": ("method.schedule",)}, "not of the form a.b=v1,v2"),
        ({"vary": ("method.schedule=",)}, "not of the form a.b=v1,v2"),
        ({"vary": ("seed=1,2",)}, "use --seeds"),
        ({"vary": ("method.name=rigl",)}, "use --methods"),
        ({"methods": "rigl", "sparsities": (0.9,), "vary": ("method.schedule=linear",)}, "none of rigl has that field"),
        ({"vary": ("train.epoch=3",)}, "did you mean 'epochs'"),
        ({"vary": ("train.epochs=3,3",)}, None),
        ({"vary": ("optimizer.name=sgd,'sgd ',",)}, "sgd"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(arguments: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert len(made(**arguments)) == 2  # the same value twice is one row
        return
    with pytest.raises(ValueError, match=message):
        made(**arguments)
