"""No test sees which ones ran before it: tests here change what is global, and whichever comes second finds it as new."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from autosparse import RigL, kernels
from autosparse.kernels import compressed, library
from autosparse.methods import METHODS

CONFTEST = Path(__file__).with_name("conftest.py")
VISITOR = "AUTOSPARSE_VISITOR"
COMPILED: list[nn.Module] = []
QUIET = """
import pytest

@pytest.mark.parametrize("number", range(4))
def test_quiet(number):
    pass
"""
LEAKING = f"""{QUIET}
def test_leaking():
    import torch
    torch.set_default_dtype(torch.float64)
"""


twice = pytest.mark.parametrize("turn", [1, 2])


@twice
def test_code_that_another_test_compiled_does_not_count(turn: int) -> None:
    model, x = nn.Sequential(nn.Linear(turn, 2)), torch.ones(3, turn)
    COMPILED.append(model)  # the code of a model that is gone would not count anyway
    with torch._dynamo.config.patch(recompile_limit=1):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), model(x))


@twice
def test_random_numbers_begin_anew(turn: int) -> None:
    assert random.random() == random.Random(0).random()
    assert numpy.random.random() == numpy.random.RandomState(0).random()
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(0))


@twice
def test_threads_variables_paths_and_methods_are_put_back(turn: int) -> None:
    assert torch.get_num_threads() == 1
    assert VISITOR not in os.environ
    assert VISITOR not in sys.path
    assert VISITOR not in METHODS
    torch.set_num_threads(2)
    os.environ[VISITOR] = "here"
    sys.path.append(VISITOR)
    METHODS[VISITOR] = RigL


@pytest.mark.skipif(not kernels.available(), reason="no sparse kernels")
@twice
def test_kernels_and_compressed_weights_are_let_go(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.available()
    assert len(compressed.WEIGHTS) == 0
    kernels.sparse_linear(torch.ones(3, 4), torch.eye(4), None, "active")
    assert len(compressed.WEIGHTS) == 1
    library.load.cache_clear()
    monkeypatch.setenv(library.VARIABLE, "off")
    assert not kernels.available()


def test_a_leak_is_an_error_and_a_seed_shuffles(tmp_path: Path) -> None:
    shutil.copy(CONFTEST, tmp_path)
    for number in range(4):
        (tmp_path / f"test_{number}.py").write_text(LEAKING if number == 1 else QUIET)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir", ".", "."]
    environment = {**os.environ, "AUTOSPARSE_TEST_ORDER": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "17 passed, 1 error" in done.stdout
    assert "ERROR test_1.py::test_leaking" in done.stdout
    assert "the test must put this back itself" in done.stdout
    order = [line.split()[0] for line in done.stdout.splitlines() if " PASSED " in line]
    modules = [module for module, _ in itertools.groupby(order, lambda test: test.split("::")[0])]
    assert len(modules) == 4  # the tests of one module stay together
    assert modules != sorted(modules)
    assert order != sorted(order, key=lambda test: (modules.index(test.split("::")[0]), test))
