"""Tests of how layers compute: skipped where no native library was built."""

from __future__ import annotations

import pytest

from autosparse.kernels import library


@pytest.fixture
def native() -> None:
    """The kernels that would be used by default."""
    if not library.available():
        pytest.skip(f"no sparse kernels: {library.why_not()}")
