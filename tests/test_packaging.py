"""What `pip install` makes of the sources, with and without a compiler; built without isolation, so without a network."""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = "autosparse/kernels/libautosparse_kernels.so"
TOOLS = bool(importlib.util.find_spec("scikit_build_core") and shutil.which("cmake"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TOOLS, reason="needs scikit-build-core and cmake"),
]


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


def test_without_a_compiler_the_wheel_is_pure_python_and_says_so(tmp_path: Path) -> None:
    wheel, printed = build(tmp_path, "build_wheel", CXX="/bin/false", CC="/bin/false")
    names = set(wheel.namelist())
    assert "autosparse/__init__.py" in names
    assert LIBRARY not in names
    assert "py3-none-any" in str(wheel.filename)
    assert "installed without them and runs on dense torch" in printed


def test_an_editable_install_is_a_path_to_the_sources(tmp_path: Path) -> None:
    # a broken compiler, so that the library beside the sources stays as it is
    wheel, _ = build(tmp_path, "build_editable", CXX="/bin/false", CC="/bin/false")
    assert [name for name in wheel.namelist() if ".dist-info/" not in name] == ["autosparse.pth"]
    assert wheel.read("autosparse.pth").decode() == f"{ROOT / 'src'}\n"
