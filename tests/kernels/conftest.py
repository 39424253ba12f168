"""Tests of the native kernels: every instruction set that this machine has, and skipped where no library was built."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from autosparse.kernels import library, memory

_last: dict[str, object] = {}


class Forgetful:
    """For AddressSanitizer: scratch memory that was kept from a larger call would hide a step beyond its end."""

    def __setattr__(self, use: str, held: object) -> None:
        _last[use] = held


def memory_of_exact_size(size: int) -> Any:
    """For AddressSanitizer: it does not watch the ends of pages."""
    return torch.empty(size, dtype=torch.uint8).numpy()


def choose(instruction_set: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the kernels anew, for one instruction set or "off"."""
    monkeypatch.setenv(library.VARIABLE, instruction_set)
    library.load.cache_clear()


@pytest.fixture(autouse=True)
def _exact_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under AddressSanitizer alone."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        monkeypatch.setattr(memory, "_local", Forgetful())
        monkeypatch.setattr(memory, "_new_pages", memory_of_exact_size)


@pytest.fixture
def native() -> None:
    """The kernels that would be used by default."""
    if not library.available():
        pytest.skip(f"no sparse kernels: {library.why_not()}")


@pytest.fixture(params=library.INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each set of kernels in turn."""
    choose(request.param, monkeypatch)
    if not library.available():
        pytest.skip(f"no sparse kernels: {library.why_not()}")
    return str(request.param)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    choose("off", monkeypatch)
