"""Tests of serving: the instruction set of the kernels is chosen per test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from autosparse.kernels import library
from autosparse.serving.native import NativeRegion


@pytest.fixture
def native_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region is used whatever the clock says: not every machine computes tiny nets faster than torch."""
    measure = NativeRegion.measure

    def ours_first(region: NativeRegion, inputs: list[Tensor]) -> tuple[float, float]:
        measure(region, inputs)
        return 0.0, 1.0

    monkeypatch.setattr(NativeRegion, "measure", ours_first)


@pytest.fixture
def choose_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Loads the kernels again, for one instruction set or "off"; the test is skipped if this processor has none of it."""

    def choose(instruction_set: str) -> None:
        monkeypatch.setenv(library.VARIABLE, instruction_set)
        library.load.cache_clear()
        if instruction_set != "off" and not library.available():
            pytest.skip(f"no sparse kernels: {library.why_not()}")

    return choose
