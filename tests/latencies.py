"""Latencies without a clock, for runs that are steered by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from autosparse.methods.goals import LatencyGoal
from autosparse.methods.latency import DENSITIES, LatencyTable
from autosparse.serving import latency


def _measure(sp: Any, precision: str) -> LatencyTable:
    """Two milliseconds for a dense model, one and a half in int8; every weight takes as long as any other."""
    total = (2.0 if precision == "float32" else 1.5) / sum(layer.numel for layer in sp.layers)
    layers = {layer.name: tuple(total * layer.numel * density for density in DENSITIES) for layer in sp.layers}
    return LatencyTable(DENSITIES, layers, (0.0,) * len(DENSITIES))


@contextmanager
def made_up_latencies() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "measure", _measure)
        patch.setattr(LatencyGoal, "check", lambda goal, sp: None)  # these runs have no example input
        yield
