"""Old paths of documented modules warn and work."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from autosparse.common.moved import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_path_gives_the_new_module_s_names_and_warns(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"autosparse.{old}", raising=False)
    with pytest.warns(DeprecationWarning, match=f"autosparse.{old} has moved to autosparse.{new}"):
        moved = importlib.import_module(f"autosparse.{old}")
    real = importlib.import_module(f"autosparse.{new}")
    for name in moved.__all__:
        assert getattr(moved, name) is getattr(real, name)


def test_names_and_parts_of_a_moved_package_are_found() -> None:
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from autosparse.deployment import SparseModel, save_onnx, load_sparse\n"
        "from autosparse.deployment.reader import load_sparse as same\n"
        "import autosparse.deployment.engine\n"
        "assert same is load_sparse and autosparse.deployment.engine.deploy is autosparse.deploy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_fail_as_always() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("autosparse.nothing")
    sys.modules.pop("autosparse.autotune", None)
    with pytest.warns(DeprecationWarning, match="has moved"):
        moved = importlib.import_module("autosparse.autotune")
    with pytest.raises(AttributeError, match="nothing"):
        moved.nothing  # noqa: B018


def test_importing_the_package_warns_of_nothing() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", "import autosparse"], check=True)
