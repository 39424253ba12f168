"""Code that a recipe or run folder names is imported only if the user has allowed its package."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from autosparse import cli
from autosparse.common.allowed import VARIABLE, allow, allowed_packages
from autosparse.recipes.loading import load_recipe
from autosparse.training.run import train

SMALL = ["train.epochs=1", "train.dense_beside=false", "train.threads=1", "data.limit=128", "data.limit_test=64"]
SOURCE = """
from pathlib import Path

from autosparse.models import small_conv

Path("imported").touch()


def net(**arguments):
    return small_conv(**arguments)
"""
VERBS = [
    ["train", "run/recipe.yaml"],
    ["train", "--resume", "--out", "run"],
    ["compare", "run/recipe.yaml", "--seeds", "1"],
    ["eval", "run"],
    ["eval", "run", "--checkpoint", "last"],
    ["export", "run"],
    ["bench", "train", "run"],
    ["bench", "infer", "run"],
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("allow") / "run"
    train(load_recipe("digits", SMALL), folder, quiet=True)
    return folder


@pytest.fixture(autouse=True)
def _someone_elses_run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose model is code beside it, which leaves a trace when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "foreign_net", raising=False)
    Path("foreign_net.py").write_text(SOURCE)
    shutil.copytree(trained, "run")
    recipe = Path("run/recipe.yaml")
    recipe.write_text(recipe.read_text().replace("name: small_conv", "name: foreign_net:net"))


def command(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(arguments))
    return stopped.value.code


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_refuses_and_names_the_option(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if "--resume" in verb:
        Path("run/result.json").unlink()
    assert command(*verb) == 2
    shown = capsys.readouterr().err
    assert "model 'foreign_net:net' would run code of foreign_net" in shown
    assert "add --allow-code foreign_net (or set AUTOSPARSE_ALLOW_CODE=foreign_net)" in shown
    assert not Path("imported").exists()
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "autosparse.common.files:shutil.rmtree"])
def test_what_python_brings_is_refused_too(name: str) -> None:
    recipe = Path("run/recipe.yaml")
    recipe.write_text(recipe.read_text().replace("name: foreign_net:net", f"name: {name}"))
    assert command("export", "run") == 2
    assert not Path("run/export").exists()


def test_the_option_and_the_variable_allow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("export", "run", "--allow-code", "other", "--allow-code", "foreign_net") == 0
    assert Path("imported").exists()
    monkeypatch.setenv(VARIABLE, "other, foreign_net")
    assert command("eval", "run") == 0
    monkeypatch.setenv(VARIABLE, "foreign,foreign_net.below")
    assert command("eval", "run") == 2


def test_the_processes_of_a_comparison_inherit_it() -> None:
    words = ["compare", "run/recipe.yaml", "--seeds", "1", "--jobs", "1", "--methods", "dense", "--out", "both", "--json"]
    assert command(*words, "--allow-code", "foreign_net") == 0
    runs = [json.loads(path.read_text()) for path in Path("both").glob("*/run.json")]
    assert [run["status"] for run in runs] == ["done"] * len(runs)
    assert runs


def test_a_name_that_the_user_types_needs_no_option() -> None:
    assert command("flops", "foreign_net:net", "--input", "1,1,8,8", "--set", "in_channels=1") == 0
    assert Path("imported").exists()
    assert allowed_packages() == []


def test_what_is_allowed_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    allow(["a", "b.c"])
    allow(["a", "d"])
    assert allowed_packages() == ["a", "b.c", "d"]
    assert command("eval", "run", "--allow-code", "foreign_net:net") == 2
    assert "give the name of a package or module alone" in capsys.readouterr().err
