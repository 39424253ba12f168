"""Models by name, and what holds for every one of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from autosparse import models

SOURCES = Path(models.__file__).parent


def test_the_list_holds_every_public_builder() -> None:
    assert models.list_models() == (
        *("mlp", "mobilenet_v1", "resnet18_cifar", "resnet20", "resnet32", "resnet50"),
        *("small_conv", "small_transformer", "text_classifier", "transformer"),
    )
    assert set(models.__all__) == {*models.list_models(), "build", "list_models", "chunked_cross_entropy"}


@pytest.mark.parametrize("name", models.list_models())
def test_build_gives_what_the_function_of_that_name_gives(name: str) -> None:
    with torch.device("meta"):
        built, called = models.build(name), getattr(models, name)()
    assert type(built) is type(called)
    assert [p.shape for p in built.parameters()] == [p.shape for p in called.parameters()]


def test_build_passes_arguments_on() -> None:
    model = models.build("small_conv", classes=3)
    assert isinstance(model.fc, nn.Linear)
    assert model.fc.out_features == 3


@pytest.mark.parametrize(
    ("name", "near"), [("resnet5", "'resnet50'"), ("mobilenet", "'mobilenet_v1'"), ("small-conv", "'small_conv'")]
)
def test_an_unknown_name_gets_near_misses_and_the_whole_list(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"unknown model '{name}'; did you mean .*{near}") as raised:
        models.build(name)
    assert all(known in str(raised.value) for known in models.list_models())


def test_a_name_like_none_of_ours_gets_the_list_alone() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'zzz'\. Known models: mlp, mobilenet_v1, "):
        models.build("zzz")


def test_an_unknown_argument_gets_near_misses_and_the_whole_list() -> None:
    with pytest.raises(TypeError, match=r"resnet20 has no argument 'clases'; did you mean 'classes'.*classes, in_channels"):
        models.build("resnet20", clases=10)


def test_models_import_nothing_else_of_the_package_but_common() -> None:
    for file in SOURCES.glob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (autosparse\S*)", file.read_text(), flags=re.MULTILINE)
        assert all(name.startswith(("autosparse.models.", "autosparse.common.")) for name in imported), file.name


def test_building_twice_from_one_seed_gives_the_same_weights() -> None:
    for name in ("small_conv", "small_transformer", "resnet20"):
        torch.manual_seed(3)
        first = models.build(name).state_dict()
        torch.manual_seed(3)
        second = models.build(name).state_dict()
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_the_function_is_reachable_after_its_file_was_imported() -> None:
    """A function and a file of the room share the name transformer; the function must win in either order."""
    script = "import autosparse.models.transformer; from autosparse import models; models.transformer(20, 8, 2, 8, 1, 1)"
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(SOURCES.parent.parent)},
    )
