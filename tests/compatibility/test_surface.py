"""Names, paths, parameters, commands and keys of 0.1.0 are still there; a DeprecationWarning is allowed, a failure is not."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

import autosparse

from . import surface
from .command import json_of, run_command
from .plain_loops import FIXTURES

OLD: dict[str, Any] = json.loads((FIXTURES / "surface.json").read_text())
FRAMEWORKS = {"autosparse.integrations.transformers": "transformers", "autosparse.integrations.lightning": "lightning"}
PATHS = sorted({*OLD["reference"], *OLD["mentioned"], *(f"autosparse.deployment.{name}" for name in OLD["deployment"])})


def need_framework(text: str) -> None:
    for module, framework in FRAMEWORKS.items():
        if module in text:
            pytest.importorskip(framework)


def test_public_names() -> None:
    assert set(OLD["all"]) <= set(autosparse.__all__)
    assert set(OLD["deployment"]) <= set(surface.resolve("autosparse.deployment").__all__)


@pytest.mark.parametrize("path", PATHS)
def test_documented_paths(path: str) -> None:
    need_framework(path)
    value = surface.resolve(path)
    fields = {each.name for each in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    assert set(OLD["reference"].get(path, [])) <= {*dir(value), *fields}


@pytest.mark.parametrize("statement", OLD["imports"])
def test_documented_imports(statement: str) -> None:
    need_framework(statement)
    exec(statement, {})


def test_documented_names_need_no_further_import() -> None:
    """In a new process, where no test has imported a module on the way."""
    names = [*(f"autosparse.{name}" for name in OLD["all"]), *OLD["used"]]
    program = "import autosparse\n" + "\n".join(names)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("module", "names"), OLD["integrations"].items())
def test_integrations(module: str, names: list[str]) -> None:
    need_framework(module)
    assert set(names) <= set(dir(surface.resolve(module)))


# on purpose, and told in CHANGELOG.md
CHANGED_DEFAULTS = {"autosparse.MEST": {"gradient_weight": "1.0"}}


@pytest.mark.parametrize("path", OLD["signatures"])
def test_parameters_and_their_defaults(path: str) -> None:
    need_framework(path)
    old, new = OLD["signatures"][path], surface.parameters_of(path)
    assert new is not None
    assert list(new["positional"].items())[: len(old["positional"])] == list(old["positional"].items())
    everything = {**new["positional"], **new["keyword"]}
    assert {name: everything.get(name) for name in old["keyword"]} == {**old["keyword"], **CHANGED_DEFAULTS.get(path, {})}
    added = everything.keys() - old["positional"].keys() - old["keyword"].keys()
    assert [name for name in added if everything[name] == ""] == [], "a new parameter that must be given"


@pytest.mark.parametrize("verb", OLD["commands"])
def test_commands(verb: str) -> None:
    old, new = OLD["commands"][verb], surface.commands()[verb]
    assert {flag: new["options"].get(flag) for flag in old["options"]} == old["options"]
    kept, added = new["arguments"][: len(old["arguments"])], new["arguments"][len(old["arguments"]) :]
    for before, after in zip(old["arguments"], kept, strict=True):
        assert after["many"] or not before["many"]
        assert before["required"] or not after["required"]
    assert not any(argument["required"] for argument in added)


def test_methods_models_and_recipes() -> None:
    assert set(OLD["methods"]) <= set(autosparse.list_methods())
    assert set(OLD["models"]) <= set(autosparse.models.list_models())
    assert set(OLD["recipes"]) <= {recipe["name"] for recipe in json_of("recipes")}
    assert set(OLD["recipe_keys"]) <= set(surface.recipe_keys(json.loads(run_command("recipes", "--schema"))))
