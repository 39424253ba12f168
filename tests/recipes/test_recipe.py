"""What a recipe refuses, and how it says so; YAML as recipes read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autosparse
from autosparse.recipes.loading import check_recipe, load_recipe
from autosparse.recipes.recipe import Recipe, build_method
from autosparse.recipes.yaml_text import read_block, read_value, write_block


def mistakes(*overrides: str, recipe: str = "digits") -> str:
    with pytest.raises(ValueError, match="recipe") as caught:
        load_recipe(recipe, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.epoch=3", "train.epoch: unknown key; did you mean 'epochs'?"),
        ("trian.epochs=3", "trian: unknown key; did you mean 'train'?"),
        ("train.lr=3", "train.lr: unknown key; did you mean 'optimizer.lr'?"),
        ("data.batchsize=3", "data.batchsize: unknown key; did you mean 'batch_size'"),
        ("optimizer.xyz=3", "optimizer.xyz: unknown key; allowed: name, lr, momentum"),
        ("optimizer.name=sdg", "optimizer.name: 'sdg' is not allowed; did you mean 'sgd'? allowed: sgd, adam or adamw"),
        ("data.kind=sounds", "data.kind: 'sounds' is not allowed; allowed: 'images', 'translation'"),
        ("train.epochs=many", "train.epochs: must be a valid integer, unable to parse string as an integer, got 'many'"),
        ("train.epochs=0", "train.epochs: must be greater than or equal to 1, got 0"),
        ("train.epochs=true", "train.epochs: must be a number, got true"),
        ("train.label_smoothing=1", "train.label_smoothing: must be less than 1, got 1"),
        ("optimizer.lr=inf", "optimizer.lr: must be a finite number, got 'inf'"),
        ("optimizer=fast", "optimizer: must be a block with name, lr, momentum"),
        ("method.name=autosprase", "method.name: there is no method 'autosprase'; did you mean 'autosparse'"),
        ("method={alpha: 1}", "method.name: missing; give one of dense, autosparse"),
        ("method.alpha=high", "method.alpha: must be a valid number, unable to parse string as a number, got 'high'"),
        ("method.alpha=1.5", "method: alpha = 1.5; allowed: 0 <= alpha <= 1"),
        ("method.zero_epoch=31", "method.zero_epoch: 31 lies beyond the run of 30 epochs"),
        ("method.autotune=true", "alpha comes from autotune"),
        ("method={name: autosparse, autotune: true, target_sparsity: 0.8}", "target_sparsity and autotune both decide"),
        ("method={name: autosparse, autotune: {epoch: 3}}", "method.autotune.epoch: unknown key; did you mean 'epochs'?"),
        ("method={name: autosparse, autotune: {epochs: 30}}", "30 epochs of tuning leave none of the run of 30 epochs"),
        ("method={name: autosparse, autotune: {down: 2}}", "method.autotune: down is 2.0; allowed: [0, 1)"),
        ("method={name: dense, alpha: 1}", "method.alpha: dense has no fields"),
        ("method.target_sparsity=0.995", "cannot be met while sparsify.density_floor keeps 0.01 of every layer"),
        ("optimizer.threshold_decay_total=3", "method.target_sparsity moves the thresholds by itself; give one of the two"),
        ("optimizer.threshold_decay_kind=coupled", "threshold_decay_kind: coupled needs name: adam; the decay of sgd has one"),
        (
            "optimizer={name: adam, lr: 1e-3, threshold_decay_kind: coupled, threshold_decay_total: 3}",
            "threshold_decay_total counts decoupled decay",
        ),
        ("schedule.warmup_epochs=31", "schedule.warmup_epochs: 31 is longer than the run of 30 epochs"),
        ("schedule={name: steps, milestones: [10, 30]}", "schedule.milestones: [30] lie beyond the run of 30 epochs"),
        ("schedule.name=inverse-sqrt", "inverse-sqrt needs warmup_steps"),
        ("train.accumulate=5", "train.accumulate: 5 does not split a batch of 64 samples evenly"),
        ("optimizer={name: adam, lr: 1e-3, nesterov: true}", "optimizer.nesterov: needs name: sgd"),
        ("train={epochs: 3, strategy: fsdp, compute: sparse}", "train.compute: sparse cannot run with strategy: fsdp"),
        ("data.source=idx", "data: source: idx needs `path`"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_is_allowed(override: str, line: str) -> None:
    assert line in mistakes(override)


def test_a_field_of_another_method_is_refused_with_the_methods_own_fields() -> None:
    told = mistakes("method.drop_fraction=0.2")
    assert (
        "method.drop_fraction: autosparse has no such field; it belongs to granet, rigl, set, snfs. Its fields: s_init" in told
    )
    assert "alpha" in told.partition("Its fields")[2]


def test_all_mistakes_are_told_at_once() -> None:
    told = mistakes("train.epoch=1", "optimizer.name=sdg", "method.alpa=.3", "method.beta=x", "data.batchsize=3")
    assert told.splitlines()[0] == "recipe digits has 5 mistakes:"
    places = [line.removeprefix("  - ").partition(": ")[0] for line in told.splitlines()[1:]]
    assert sorted(places) == ["data.batchsize", "method.alpa", "method.beta", "optimizer.name", "train.epoch"]


def test_what_is_missing_is_named_with_its_meaning() -> None:
    with pytest.raises(ValueError, match="mistakes") as caught:
        check_recipe({"name": "x", "model": "resnet20", "data": {"source": "digits"}, "method": "dense"}, "x")
    lines = str(caught.value).splitlines()
    assert "  - data.batch_size: missing (Images per step, over all processes)" in lines
    assert "  - optimizer: missing" in lines


def test_words_that_are_numbers_become_numbers(tmp_path: Path) -> None:
    recipe = load_recipe("digits", ["optimizer.weight_decay='1e-3'", "method.alpha='0.5'", "train.epochs='7'"])
    assert (recipe.optimizer.weight_decay, recipe.method["alpha"], recipe.train.epochs) == (1e-3, 0.5, 7)


def test_build_method_makes_nested_blocks_and_tuples() -> None:
    tuned = build_method({"name": "autosparse", "autotune": {"epochs": 2, "down": 0.01}}, reference=[2.0, 1.0])
    assert tuned.autotune == autosparse.AutoTune(epochs=2, down=0.01, reference=[2.0, 1.0])
    assert build_method({"name": "topkast+ga", "ga": {"alpha": 0.4}}).ga.alpha == 0.4
    assert build_method({"name": "mest", "mutation": [0.03], "stages": [0.5]}).mutation == (0.03,)


def test_a_switch_stands_for_a_block_of_defaults() -> None:
    fields = load_recipe("digits", ["method={name: autosparse, autotune: true}"]).method
    assert build_method(fields).autotune == autosparse.AutoTune()
    assert "autotune" not in load_recipe("digits", ["method.autotune=false"]).method
    # null is a value of its own where the default is another
    assert load_recipe("digits", ["method={name: rigl, update_every: null}"]).method["update_every"] is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-4", 1e-4), ("1E5", 1e5), (".5", 0.5), ("-2.", -2.0), ("3", 3), ("007", 7), ("no", "no"), ("on", "on")),
        *(("true", True), ("null", None), ("~", None), ("2001-01-01", "2001-01-01"), ("1:30", "1:30"), ("1e", "1e")),
    ],
)
def test_plain_words_of_yaml(text: str, value: Any) -> None:
    found = read_value(text, "here")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "here: key 'a' is given twice, in lines 1 and 3"),
        ("a: {b: 1, b: 1}", "key 'b' is given twice"),
        ("a: [1", "here, line 1: "),
        ("- 1", "here: a recipe is a block of `key: value` lines, found a list"),
        ("", "found nothing"),
        ("1: 2", "line 1: a key must be a word"),
        ("? [a]\n: 1", "line 1: a key must be a word"),
        ("b: 1\na: !!python/object:os.system x", "here, line 2: the tag !!python/object:os.system does not belong here"),
        ("a: !!timestamp x", "the tag !!timestamp does not belong here; write the value without it"),
        ("a: !!binary 3", "the tag !!binary does not belong here"),
        ("a: !!map 3", "the tag !!map does not belong here"),
        ("a: !!bool 3", "here, line 1: '3' cannot be read as bool"),
        ("a: !!int x", "'x' cannot be read as int"),
        ("a: " + 5000 * "9", "cannot be read as int"),
        ("a: " + 5000 * "[", "here: its blocks are nested too deeply"),
        ("a: &a [*a]", "an alias stands for a block that it is part of"),
        ("a: &a {b: *a}", "an alias stands for a block that it is part of"),
    ],
)
def test_yaml_that_is_no_recipe(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="here") as caught:
        read_block(text, "here")
    assert message in str(caught.value)


@pytest.mark.parametrize("block", ["[{}]", "{{{}}}"])
def test_a_few_aliases_may_not_stand_for_billions_of_values(block: str) -> None:
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 10):
        parts = [f"*a{level - 1}" if block == "[{}]" else f"k{number}: *a{level - 1}" for number in range(10)]
        lines.append(f"a{level}: &a{level} " + block.format(", ".join(parts)))
    assert len("\n".join(lines)) < 1700
    with pytest.raises(ValueError, match="here: it holds more than 10,000 values once its aliases are written out"):
        read_block("\n".join(lines), "here")
    assert read_block("\n".join(lines[:3]), "here")["a1"] is not None


def test_aliases_and_merged_blocks_of_a_usual_size_are_read() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a\nd: !!float 2"
    assert read_block(text, "here") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2}, "d": 2.0}


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda key: key not in ("null", "true", "false")),
        plain | st.lists(plain, max_size=3),
    )
)
def test_what_is_written_reads_back(block: dict[str, Any]) -> None:
    if block:
        again = read_block(write_block(block), "here")
        assert again == block
        assert [type(value) for value in again.values()] == [type(value) for value in block.values()]


def test_a_recipe_is_frozen() -> None:
    recipe = load_recipe("digits")
    with pytest.raises(ValueError, match="frozen"):
        recipe.train.epochs = 3  # type: ignore[misc]
    assert isinstance(recipe, Recipe)
