"""The recipes of the package: all load, build, match the paper's tables; extends, overrides, differences, schema."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import autosparse
from autosparse import models
from autosparse import recipes as module
from autosparse.data.config import ImageData
from autosparse.recipes.files import find_recipe
from autosparse.recipes.json_schema import recipe_schema
from autosparse.recipes.loading import differences, dump_recipe, load_recipe, recipe_names, recipe_text
from autosparse.recipes.recipe import Recipe, build_method
from autosparse.recipes.yaml_text import read_block

PAPER = json.loads((Path(autosparse.__file__).parent / "experiments/paper_tables.json").read_text())
TABLES = PAPER["tables"]
NAMES = recipe_names()
ROWS = [(table, row) for table, content in TABLES.items() for row in range(len(content["rows"]))]
# of the results that the paper quotes in its text
IN_THE_TEXT = {("text_only_results", 0): "scl", ("text_only_results", 1): "ltp", ("text_only_results", 2): "gdp"}
METHODS = {
    "AutoSparse": "autosparse",
    "STR": "str",
    "RigL": "rigl",
    "TopKAST": "topkast",
    "TopKAST*": "topkast",
    "TopKAST*+PP": "topkast+pp",
    "TopKAST*+GA": "topkast+ga",
    "MEST_1.7x+EM": "mest",
    "DST": "dst",
}


@pytest.fixture(scope="module")
def recipes() -> dict[str, Recipe]:
    return {name: load_recipe(name) for name in NAMES}


def by_row(recipes: dict[str, Recipe], table: str, row: int) -> list[Recipe]:
    return [each for each in recipes.values() if each.paper and (each.paper.table, each.paper.row) == (table, row)]


def test_the_promised_recipes_are_there() -> None:
    assert {"digits", "digits-autotune", "fashion-mnist", "cifar10-resnet20"} <= set(NAMES)
    assert {"resnet50-dense", "mobilenet-dense", "wmt14-dense"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_loads_under_its_name_and_back_from_its_own_yaml(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description
    flat = tmp_path / "recipe.yaml"
    flat.write_text(dump_recipe(recipe), encoding="utf-8")
    assert "extends" not in flat.read_text(encoding="utf-8")
    assert load_recipe(flat) == recipe
    shown = tmp_path / f"{name}.yaml"
    shown.write_text(recipe_text(name), encoding="utf-8")
    assert load_recipe(shown) == recipe


def one_of_each_kind() -> list[str]:
    """Rows that differ in numbers alone build the same thing."""
    kinds = {}
    for name in NAMES:
        recipe = load_recipe(name)
        kinds[(recipe.model.name, recipe.method["name"], str(sorted(recipe.method)), recipe.sparsify, recipe.data.kind)] = name
    return sorted(kinds.values())


@pytest.mark.parametrize("name", one_of_each_kind())
def test_its_model_builds_and_its_patterns_match(name: str) -> None:
    recipe = load_recipe(name)
    arguments = dict(recipe.model.arguments)
    if recipe.model.name == "transformer":
        arguments |= {"vocabulary": 300, "size": 16, "heads": 2, "feed_forward": 32}
    model = models.build(recipe.model.name, **arguments)
    if isinstance(recipe.data, ImageData):
        weights = [each for each in model.parameters() if each.dim() > 1]
        assert weights[0].shape[1] == recipe.data.channels
        assert weights[-1].shape[0] == recipe.data.classes
    if recipe.dense:
        return
    tuned = recipe.method.get("autotune")
    method = build_method(recipe.method, reference=[1.0] * tuned["epochs"] if tuned else None)
    where = recipe.sparsify
    options = {"example_input": torch.zeros(2, 3, 64, 64)} if method.traits.needs_example else {}
    sp = autosparse.sparsify(
        model, method, epochs=recipe.train.epochs, steps_per_epoch=1, include=where.include, exclude=where.exclude, **options
    )
    expected = {"resnet50": 54, "mobilenet_v1": 28, "small_conv": 7}.get(recipe.model.name)
    ends = {"rigl": 1, "mest": 1, "topkast": 2, "topkast+pp": 2, "topkast+ga": 2}.get(recipe.method["name"], 0)
    if expected:
        assert len(sp.layers) == expected - ends
    elif recipe.model.name == "transformer":
        assert all(layer.name.startswith(("encoder.", "decoder.")) for layer in sp.layers)


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_every_row_of_the_tables_has_one_recipe_that_agrees(table: str, row: int, recipes: dict[str, Recipe]) -> None:
    (recipe,) = by_row(recipes, table, row)
    printed, method = TABLES[table]["rows"][row], recipe.method
    if table == "autotune":
        assert recipe.model.name == {"ResNet50": "resnet50", "MobileNetV1": "mobilenet_v1"}[printed["network"]]
        tune = method["autotune"]
        assert [tune["tolerance"], tune["up"], tune["down"]] == printed["eps0_eps1_eps2"]
        assert (tune["start"], tune["epochs"], recipe.train.epochs) == (0.5, printed["tuning_epochs"], printed["epochs"])
    else:
        assert method["name"] == METHODS[printed["method"]]
        net = {"mobilenetv1": "mobilenet_v1", "wmt_transformer": "transformer"}.get(table, "resnet50")
        assert recipe.model.name == net
        assert method.get("alpha") == printed.get("alpha0")
    assert method.get("zero_epoch") == printed.get("alpha_zero_epoch")
    if method["name"] == "autosparse":
        assert method["s_init"] == printed.get("s0", printed.get("s_init", -5))
    if method["name"] == "str" and "s_init" in printed:
        assert method["s_init"] == printed["s_init"]
    if "sparsity" in method:
        assert round(100 * method["sparsity"], 2) == printed["sparsity_pct"]
    if "backward_sparsity_pct" in printed:
        assert 100 * method["backward_sparsity"] == printed["backward_sparsity_pct"]


def test_no_recipe_stands_for_a_row_that_is_not_there(recipes: dict[str, Recipe]) -> None:
    named = Counter((each.paper.table, each.paper.row) for each in recipes.values() if each.paper)
    assert sorted(named) == sorted([*ROWS, *IN_THE_TEXT])
    assert set(named.values()) == {1}
    assert len(ROWS) == 16 + 2 + 5 + 2 + 4


@pytest.mark.parametrize(("place", "method"), IN_THE_TEXT.items())
def test_results_in_the_papers_text_have_recipes(place: tuple[str, int], method: str, recipes: dict[str, Recipe]) -> None:
    (recipe,) = by_row(recipes, *place)
    quoted = PAPER["text_only_results"][place[1]]
    assert (recipe.method["name"], quoted["method"].lower()) == (method, method)
    percent = quoted["sparsity_pct"] if "sparsity_pct" in quoted else round(100 * quoted["test_flops_x"])
    assert recipe.name == f"resnet50-{method}-{percent}"


def test_ltp_starts_from_a_trained_net_and_takes_thirty_epochs(recipes: dict[str, Recipe]) -> None:
    recipe = recipes["resnet50-ltp-89"]
    assert (recipe.initial_weights, recipe.train.epochs) == ("runs/resnet50-dense", 30)
    assert recipe.model.arguments == recipes["resnet50-dense"].model.arguments


def test_optg_trains_as_its_authors_code_does(recipes: dict[str, Recipe]) -> None:
    recipe = recipes["resnet50-optg-80"]
    optimizer = recipe.optimizer
    assert (optimizer.lr, optimizer.momentum, optimizer.weight_decay) == (0.1, 0.9, 1e-4)
    assert (recipe.schedule.name, recipe.schedule.warmup_epochs, recipe.train.label_smoothing) == ("cosine", 5, 0.1)


def test_the_papers_settings_hold_in_the_rows(recipes: dict[str, Recipe]) -> None:
    for each in recipes.values():
        if each.paper and each.method["name"] == "autosparse" and isinstance(each.data, ImageData):
            optimizer = each.optimizer
            assert (optimizer.name, optimizer.lr, optimizer.momentum, optimizer.weight_decay) == ("sgd", 0.256, 0.875, 2**-15)
            assert (each.data.batch_size, each.train.epochs, each.train.label_smoothing) == (256, 100, 0.1)
            assert (each.schedule.name, each.schedule.warmup_epochs, each.schedule.by) == ("cosine", 5, "epoch")
            assert each.data.hub == "ILSVRC/imagenet-1k"
    for name in ("wmt14-autosparse", "wmt14-str"):
        optimizer = recipes[name].optimizer
        assert (optimizer.name, optimizer.lr, optimizer.betas) == ("adam", 0.000846, (0.9, 0.997))
        assert (recipes[name].schedule.warmup_steps, optimizer.threshold_decay) == (4000, 0.01)
        assert optimizer.threshold_decay_kind == "coupled"
        assert recipes[name].data.tokens_per_batch == 8 * 10240
        assert recipes[name].data.hub == "wmt/wmt14"
    assert recipes["resnet50-str-80"].optimizer.weight_decay == 1.7e-5


@pytest.mark.parametrize("method", ["dense", "str", "autosparse"])
def test_the_base_transformer_is_a_variant_of_the_papers_big_one(method: str, recipes: dict[str, Recipe]) -> None:
    big, base = recipes[f"wmt14-{method}"], recipes[f"wmt14-base-{method}"]
    widths = [[recipe.model.arguments[name] for name in ("size", "heads", "feed_forward")] for recipe in (big, base)]
    assert widths == [[1024, 16, 4096], [512, 8, 2048]]
    assert base.paper is None
    for block in ("seed", "data", "method", "sparsify", "optimizer", "schedule", "train"):
        assert getattr(big, block) == getattr(base, block), block


def test_rigl_trains_as_its_authors_code_does(recipes: dict[str, Recipe]) -> None:
    optimizer = recipes["resnet50-rigl-80"].optimizer
    assert (optimizer.momentum, optimizer.nesterov) == (0.9, True)
    assert (optimizer.weight_decay, optimizer.norm_decay) == (1e-4, False)
    assert recipes["resnet50-rigl-80"].method["update_end"] == round(25_000 / 32_000, 2)


@pytest.mark.parametrize(("name", "source"), [("resnet50-autosparse-80", "folder"), ("wmt14-str", "files")])
def test_local_copies_take_the_place_of_the_hub(name: str, source: str) -> None:
    data = load_recipe(name, [f"data.source={source}", "data.path=/data/here"]).data
    assert (data.source, data.path) == (source, "/data/here")


def test_names_and_files_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no recipe 'digit'; did you mean 'digits'"):
        load_recipe("digit")
    with pytest.raises(FileNotFoundError, match=r"nothing\.yaml does not exist"):
        load_recipe(tmp_path / "nothing.yaml")


def test_extends_merges_deeply_and_keeps_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: digits\ndescription: base\ntrain: {epochs: 5}\n")
    child = tmp_path / "child.yaml"
    child.write_text("extends: ./base.yaml\nmethod: {target_sparsity: 0.9}\nmodel: {arguments: {width: 8}}\n")
    recipe = load_recipe(child)
    assert (recipe.name, recipe.description, recipe.train.epochs) == ("child", "", 5)
    assert recipe.method == {"name": "autosparse", "target_sparsity": 0.9, "target_ramp": 0.3, "alpha": 0.75}
    assert recipe.model.arguments == {"classes": 10, "in_channels": 1, "width": 8}
    # another method takes nothing over, and the paper's row stays with its own recipe
    child.write_text("extends: resnet50-autosparse-80\nmethod: {name: str}\n")
    assert load_recipe(child).method == {"name": "str"}
    assert load_recipe(child).paper is None


def test_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ValueError, match=r"in a circle: a\.yaml -> b\.yaml -> a\.yaml"):
        load_recipe(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("extends: [b.yaml]\n")
    with pytest.raises(ValueError, match="give the name of a recipe"):
        load_recipe(tmp_path / "a.yaml")


def test_overrides_are_yaml_and_apply_in_turn() -> None:
    recipe = load_recipe("digits", ["train.epochs=4", "train.epochs=12", "sparsify.exclude=fc", "model.arguments.width=8"])
    assert (recipe.train.epochs, recipe.sparsify.exclude, recipe.model.arguments["width"]) == (12, ("fc",), 8)
    assert load_recipe("digits", ["schedule={name: steps, milestones: [3, 9]}"]).schedule.milestones == (3, 9)
    assert load_recipe("digits", ["train.threads=null"]).train.threads is None
    for wrong in ("train.epochs", "=3", "train..epochs=3"):
        with pytest.raises(ValueError, match="give a path and a value"):
            load_recipe("digits", [wrong])
    with pytest.raises(ValueError, match=r"seed\.x: seed is 0, not a block"):
        load_recipe("resnet50-dense", ["seed=0", "seed.x=1"])


def test_a_new_method_keeps_the_wanted_sparsity_and_tells_what_it_drops() -> None:
    with pytest.warns(autosparse.SparsityWarning, match="method rigl has no alpha, target_ramp"):
        assert load_recipe("digits", ["method.name=rigl"]).method == {"name": "rigl", "sparsity": 0.8}
    with pytest.warns(autosparse.SparsityWarning, match="has no alpha"):
        changed = load_recipe("digits", ["method.sparsity=0.9", "method.name=rigl", "method.drop_fraction=0.2"])
    assert changed.method == {"name": "rigl", "sparsity": 0.9, "drop_fraction": 0.2}
    with pytest.warns(autosparse.SparsityWarning, match="method str has no alpha"):
        assert load_recipe("digits", ["method.name=str"]).method == {"name": "str", "target_sparsity": 0.8, "target_ramp": 0.3}
    with (
        pytest.warns(autosparse.SparsityWarning, match="has no alpha"),
        pytest.raises(ValueError, match=r"method\.alpha: rigl has no such field"),
    ):
        load_recipe("digits", ["method.name=rigl", "method.alpha=0.5"])
    back = load_recipe("resnet50-rigl-80", ["method={name: autosparse, target_sparsity: 0.7}"])
    assert back.method == {"name": "autosparse", "target_sparsity": 0.7}


@pytest.mark.parametrize("override", ["method=dense", "method.name=dense", "method={name: dense}"])
def test_a_dense_run_by_override_has_no_dense_run_beside(override: str) -> None:
    recipe = load_recipe("digits", [override])
    assert recipe.dense
    assert not recipe.train.dense_beside
    with pytest.raises(ValueError, match="this recipe is dense itself"):
        load_recipe("digits", [override, "train.dense_beside=true"])


def test_differences_are_readable() -> None:
    changed = load_recipe("digits", ["train.epochs=12", "method.zero_epoch=9", "train.threads=null", "sparsify.exclude=fc"])
    assert differences(load_recipe("digits"), changed) == [
        "method.zero_epoch: ramp -> 9",
        "sparsify.exclude: None -> ['fc']",
        "train.epochs: 30 -> 12",
        "train.threads: 1 -> None",
    ]
    assert differences(changed, changed) == []


def fits(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """As much of JSON schema as ours uses."""
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list}
    kind = schema.get("type")
    if kind == "null":
        return value is None
    wrong = kind is not None and (not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind != "boolean"))
    if wrong or ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if schema.get("additionalProperties", True) is False and set(value) - set(known):
            return False
        if not set(schema.get("required", ())) <= set(value):
            return False
        if not all(fits(each, known[key], root) for key, each in value.items() if key in known):
            return False
    if isinstance(value, list) and "items" in schema and not all(fits(each, schema["items"], root) for each in value):
        return False
    return "anyOf" not in schema or any(fits(value, each, root) for each in schema["anyOf"])


def test_the_schema_fits_every_file_and_catches_what_the_loader_catches() -> None:
    schema = recipe_schema()
    for name in NAMES:
        block = read_block(find_recipe(name).read_text(encoding="utf-8"), name)
        assert fits(block, schema, schema), name
        assert fits(load_recipe(name).model_dump(mode="json"), schema, schema), name
    digits = read_block(recipe_text("digits"), "digits")
    for wrong in (
        {"train": {"epoch": 3}},
        {"train": {"epochs": "many"}},
        {"method": {"name": "autosparse", "drop_fraction": 0.3}},
        {"method": "autosprase"},
        {"data": {"source": "nowhere"}},
        {"trian": {}},
    ):
        assert not fits({**digits, **wrong}, schema, schema), wrong
    assert not fits({key: value for key, value in digits.items() if key != "model"}, schema, schema)


def test_the_schema_is_plain_json() -> None:
    assert json.loads(json.dumps(recipe_schema())) == recipe_schema()


def test_the_plain_names_of_the_module() -> None:
    recipe = module.load("digits", ["train.epochs=3"])
    assert recipe.train.epochs == 3
    assert module.check(read_block(module.dump(recipe), "dumped"), "dumped") == recipe
    with pytest.raises(AttributeError, match="no attribute 'loads'"):
        module.loads  # noqa: B018


def test_a_run_keeps_every_field_of_its_method(tmp_path):
    from autosparse.recipes.loading import completed, dump_recipe

    recipe = completed(load_recipe("digits"))
    assert recipe.method["zero_epoch"] == "ramp"
    assert recipe.method["alpha_per"] == "step"
    assert recipe.method["target_ramp"] == 0.3
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "recipe.yaml", of_run=True) == recipe


def test_a_run_of_0_1_keeps_its_defaults(tmp_path):
    from autosparse.recipes.loading import completed, dump_recipe

    (tmp_path / "recipe.yaml").write_text(dump_recipe(load_recipe("digits")))
    method = completed(load_recipe(tmp_path / "recipe.yaml", of_run=True)).method
    assert (method["preset"], method["zero_epoch"], method["alpha_per"]) == ("v0.1", "never", "epoch")


def test_recipes_of_the_paper_move_alpha_per_epoch():
    methods = [load_recipe(name).method for name in recipe_names() if name.startswith(("resnet50", "mobilenet", "wmt14"))]
    assert {method.get("alpha_per") for method in methods if method["name"] == "autosparse"} == {"epoch"}
