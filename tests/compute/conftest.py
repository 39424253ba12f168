"""Tests of how layers compute: skipped where no native library was built."""

from __future__ import annotations

import pytest

from autosparse import GMP, AutoSparse
from autosparse.kernels import library

# gradients for all weights, for active ones, per channel, for a mask, and of a fixed mask
KINDS_OF_GRADIENTS = [
    AutoSparse(alpha=0.5, start_sparsity=0.8),
    AutoSparse(alpha=0.0, start_sparsity=0.8),
    AutoSparse(alpha=0.5, start_sparsity=0.8, threshold="channel"),
    AutoSparse(alpha=0.5, start_sparsity=0.8, backward_sparsity=0.6),
    GMP(sparsity=0.8),
]


@pytest.fixture
def native() -> None:
    """The kernels that would be used by default."""
    if not library.available():
        pytest.skip(f"no sparse kernels: {library.why_not()}")
