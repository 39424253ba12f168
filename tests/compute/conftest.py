"""Tests of how layers compute: skipped where no native library was built; compressed weights are left as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from autosparse.kernels import compressed, library


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    compressed.WEIGHTS.clear()


@pytest.fixture
def native() -> None:
    """The kernels that would be used by default."""
    if not library.available():
        pytest.skip(f"no sparse kernels: {library.why_not()}")
