"""Finding, loading and building the library; what happens when it is missing, foreign or switched off."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autosparse import kernels
from autosparse.kernels import build, library

from .conftest import choose


def run_python(code: str, **environment: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


STATE = "from autosparse import kernels as k; print(k.available(), k.instruction_set(), k.why_not())"


def test_off_is_off() -> None:
    assert run_python(STATE, AUTOSPARSE_KERNELS="off") == "False None switched off by AUTOSPARSE_KERNELS=off"


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    choose("sse9", monkeypatch)
    assert not kernels.available()
    assert kernels.why_not() == "AUTOSPARSE_KERNELS=sse9 is unknown; allowed: avx512, avx2, portable, off"


def test_a_missing_library_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.delenv(library.VARIABLE, raising=False)
    library.load.cache_clear()
    assert not kernels.available()
    reason = kernels.why_not()
    assert reason is not None
    assert "is missing" in reason
    assert "python -m autosparse.kernels.build" in reason
    assert "\n" not in reason
    with pytest.raises(RuntimeError, match="no sparse kernels: the native library is missing"):
        library.kernels()


def test_a_library_of_another_machine_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / library.FILE_NAME).write_bytes(b"\x7fELF of some other processor")
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.delenv(library.VARIABLE, raising=False)
    library.load.cache_clear()
    reason = kernels.why_not()
    assert reason is not None
    assert "cannot be loaded on this machine" in reason
    assert "\n" not in reason
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    assert torch.equal(kernels.sparse_linear(x, weight), torch.nn.functional.linear(x, weight))


def test_a_library_of_another_version_is_not_used(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "INTERFACE_VERSION", library.INTERFACE_VERSION + 1)
    library.load.cache_clear()
    reason = kernels.why_not()
    assert reason is not None
    assert "is of another version" in reason
    assert "run `python -m autosparse.kernels.build`" in reason


@pytest.mark.parametrize("name", library.INSTRUCTION_SETS)
def test_an_instruction_set_can_be_forced(native: None, name: str) -> None:
    found = run_python(STATE, AUTOSPARSE_KERNELS=name)
    assert found in (
        f"True {name} None",
        f"False None this processor cannot run the {name} kernels; leave AUTOSPARSE_KERNELS unset to choose by itself",
    )


def test_every_processor_runs_the_portable_kernels(native: None) -> None:
    assert run_python(STATE, AUTOSPARSE_KERNELS="portable") == "True portable None"


def test_training_and_inference_share_one_instruction_set(instruction_set: str) -> None:
    using, engine = library.kernels(), library.engine()
    assert engine is not None
    assert (using.instruction_set, using.lanes) == (engine.instruction_set, engine.lanes)
    assert engine.instruction_set == instruction_set


def test_each_set_has_its_own_width(instruction_set: str) -> None:
    assert library.kernels().lanes == {"avx512": 16, "avx2": 8, "portable": 4}[instruction_set]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_torch_and_the_kernels_share_one_openmp(native: None) -> None:
    code = (
        "import torch; from autosparse import kernels as k; k.sparse_linear(torch.ones(9, 9), torch.eye(9));"
        "print(len({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line or 'libiomp' in line}))"
    )
    assert run_python(code) == "1"


@pytest.mark.slow
@pytest.mark.parametrize("with_cmake", [True, False])
def test_it_can_be_built(with_cmake: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = shutil.which
    if not any(found(name) for name in build.COMPILERS):
        pytest.skip("no C++ compiler")
    if with_cmake and not found("cmake"):
        pytest.skip("no cmake")
    if not with_cmake:
        monkeypatch.setattr(shutil, "which", lambda name: None if name == "cmake" else found(name))
    assert build.build(tmp_path) == tmp_path / build.FILE_NAME
    assert [path.name for path in tmp_path.iterdir()] == [build.FILE_NAME]
    found_state = run_python(STATE, AUTOSPARSE_KERNELS="portable", AUTOSPARSE_KERNELS_DIR=str(tmp_path))
    assert found_state == "True portable None"


def test_without_a_compiler_the_build_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler found; looked for cmake"):
        build.build(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_address_and_undefined_behaviour_sanitizers_find_nothing() -> None:
    if not shutil.which("g++"):
        pytest.skip("no g++")
    script = Path(__file__).with_name("sanitize.sh")
    done = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, check=False, env={**os.environ, "PYTHON": sys.executable}
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
