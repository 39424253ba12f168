"""What `pip install` makes of the sources, with and without a compiler; built without isolation, so without a network."""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import autosparse

ROOT = Path(__file__).parents[1]
LIBRARY = "autosparse/kernels/libautosparse_kernels.so"
TOOLS = bool(importlib.util.find_spec("scikit_build_core") and shutil.which("cmake"))


def builds(test: Any) -> Any:
    """Marks a test that builds a package."""
    return pytest.mark.slow(pytest.mark.skipif(not TOOLS, reason="needs scikit-build-core and cmake")(test))


def build(folder: Path, hook: str, **environment: str) -> tuple[zipfile.ZipFile, str]:
    """The wheel that a hook of the build backend makes, and what it printed."""
    script = f"import native_build; print(native_build.{hook}({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "build_backend"), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return zipfile.ZipFile(folder / done.stdout.split()[-1]), done.stdout


@builds
@pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")
def test_a_wheel_holds_the_package_and_the_library(tmp_path: Path) -> None:
    wheel, _ = build(tmp_path, "build_wheel")
    names = set(wheel.namelist())
    assert {
        "autosparse/__init__.py",
        "autosparse/recipes/library/digits.yaml",
        "autosparse/report/page.css",
        LIBRARY,
    } <= names
    wheel.extractall(tmp_path / "installed")
    script = "import autosparse.kernels as k; print(k.__file__, k.instruction_set())"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AUTOSPARSE_KERNELS")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=True,
    )
    place, instruction_set = done.stdout.split()
    assert Path(place).is_relative_to(tmp_path)
    assert instruction_set in ("avx512", "avx2", "portable")


@builds
def test_without_a_compiler_the_wheel_is_pure_python_and_says_so(tmp_path: Path) -> None:
    wheel, printed = build(tmp_path, "build_wheel", CXX="/bin/false", CC="/bin/false")
    names = set(wheel.namelist())
    assert "autosparse/__init__.py" in names
    assert LIBRARY not in names
    assert "py3-none-any" in str(wheel.filename)
    assert "installed without them and runs on dense torch" in printed


@builds
def test_an_editable_install_is_a_path_to_the_sources(tmp_path: Path) -> None:
    # a broken compiler, so that the library beside the sources stays as it is
    wheel, _ = build(tmp_path, "build_editable", CXX="/bin/false", CC="/bin/false")
    assert [name for name in wheel.namelist() if ".dist-info/" not in name] == ["autosparse.pth"]
    assert wheel.read("autosparse.pth").decode() == f"{ROOT / 'src'}\n"


def repository() -> Any:
    sys.path.insert(0, str(ROOT / "build_backend"))
    try:
        return importlib.import_module("repository")
    finally:
        sys.path.pop(0)


TEXT = "![a](docs/a.svg) [b](docs/b.md#c) [d](#e) [f](https://arxiv.org/abs/1) [![g](h.svg)](i.md)"


def test_links_become_words_while_the_project_has_no_address() -> None:
    assert repository().linked(TEXT, "") == " b [d](#e) [f](https://arxiv.org/abs/1) "
    assert repository().urls("") == {}


def test_links_follow_the_address() -> None:
    here = "https://example.org/o/n"
    assert repository().linked(TEXT, here) == (
        f"![a]({here}/raw/HEAD/docs/a.svg) [b]({here}/blob/HEAD/docs/b.md#c) [d](#e) [f](https://arxiv.org/abs/1) "
        f"![g]({here}/raw/HEAD/h.svg)"
    )
    assert repository().urls(here)["Issues"] == f"{here}/issues"


def test_no_file_invents_an_address_of_the_project() -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["dynamic-metadata"]
    (known,) = (entry["repository"] for entry in entries if "repository" in entry)
    own = re.compile(r"(?:https?://|git@)[\w.:@/~-]*autosparse[\w./~-]*", re.IGNORECASE)
    suffixes = {".md", ".toml", ".yml", ".yaml", ".cff", ".py", ".ipynb", ".txt", ".lock"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    files = [ROOT / name for name in listed if Path(name).suffix in suffixes and (ROOT / name).is_file()]
    assert not listed or len(files) > 100
    found = {
        (path.relative_to(ROOT).as_posix(), address)
        for path in files
        for address in own.findall(path.read_text(encoding="utf-8"))
        if not (known and address.startswith(known)) and "example" not in address
    }
    assert found == set()


def test_papers_of_the_project_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == autosparse.__version__
    assert f"## [{autosparse.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    lint = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    commands = [line.strip().removeprefix("$(BIN)/").removesuffix(" $(FILES)") for line in lint.splitlines()[1:]]
    assert [hook["entry"].removeprefix(".venv/bin/") for hook in hooks] == commands
