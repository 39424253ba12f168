"""Tests of serving: the instruction set of the kernels is chosen per test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autosparse.kernels import library


@pytest.fixture
def choose_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Loads the kernels again, for one instruction set or "off"; the test is skipped if this processor has none of it."""

    def choose(instruction_set: str) -> None:
        monkeypatch.setenv(library.VARIABLE, instruction_set)
        library.load.cache_clear()
        if instruction_set != "off" and not library.available():
            pytest.skip(f"no sparse kernels: {library.why_not()}")

    return choose
