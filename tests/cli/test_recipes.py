"""`autosparse recipes`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autosparse import cli
from autosparse.recipes.loading import load_recipe, recipe_names


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["recipes", *arguments])
    captured = capsys.readouterr()
    assert stopped.value.code == code, captured.err
    return captured.err if code else captured.out


def test_the_list_has_a_line_for_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split() for line in shown(capsys).splitlines()]
    assert lines[0][:4] == ["name", "model", "data", "method"]
    listed = {line[0]: line[1:4] for line in lines[2:-2]}
    assert sorted(listed) == recipe_names()
    assert listed["digits"] == ["small_conv", "digits", "autosparse"]
    assert listed["wmt14-str"] == ["transformer", "wmt/wmt14", "str"]


def test_the_list_as_json_agrees_with_the_checked_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(shown(capsys, "--json"))
    assert [row["name"] for row in rows] == recipe_names()
    for row in rows:
        recipe = load_recipe(row["name"])
        assert (row["model"], row["method"], row["description"]) == (
            recipe.model.name,
            recipe.method["name"],
            recipe.description,
        )


def test_listing_needs_no_torch() -> None:
    code = "import sys\nfrom autosparse.cli.recipes import row\nrow('digits')\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_recipe_is_shown_as_yaml_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert "target_sparsity: 0.8   # layers learn" in shown(capsys, "digits")
    merged = shown(capsys, "resnet50-str-80")
    assert "extends" not in merged
    assert "s_init: -3200" in merged
    assert "lr: 0.256" in merged
    assert json.loads(shown(capsys, "digits", "--json"))["train"]["epochs"] == load_recipe("digits").train.epochs


def test_the_schema_is_printed_without_noise(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(shown(capsys, "--schema"))
    assert schema["title"] == "autosparse recipe"
    assert "method rigl" in schema["$defs"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["digits", "resnet50-autosparse-80"])
def test_a_copy_is_a_recipe_to_edit_and_overwrites_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine.yaml"
    assert f"autosparse train {target}" in shown(capsys, name, "--copy", str(target))
    copied = load_recipe(target)
    assert copied.name == "mine"
    assert copied.model_copy(update={"name": name}) == load_recipe(name)
    before = target.read_text(encoding="utf-8")
    assert "is not overwritten" in shown(capsys, name, "--copy", str(target), code=2)
    assert target.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["didgits"], "did you mean 'digits'"),
        (["--copy", "mine.yaml"], "--copy needs the recipe to copy"),
        (["digits", "--copy", "mine.txt"], "a recipe file ends in .yaml"),
        (["digits", "--schema"], "leave the name and --copy out"),
    ],
)
def test_wrong_use_is_told(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in shown(capsys, *arguments, code=2)
