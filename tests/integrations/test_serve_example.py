"""examples/serve.py at twice its capacity, for a few seconds; `make soak` holds it for ten minutes and reads the clock, too."""

from __future__ import annotations

import pytest

from autosparse.kernels import library

from ..chaos.soak import soak


@pytest.mark.slow
@pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}")
def test_twice_the_capacity_for_ten_seconds() -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    result = soak(10)
    assert result.faults() == [], "\n".join(result.lines())
