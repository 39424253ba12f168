"""How long a model takes when it is served, by the densities of its layers: a table that is measured once in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from autosparse.common.ranks import from_first_rank, leads
from autosparse.methods.families.base import Run

DENSITIES = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # that are measured


@dataclass(frozen=True)
class LatencyTable:
    """Milliseconds of every layer, and of all the rest, at some densities of the layers, in rising order."""

    densities: tuple[float, ...]
    layers: dict[str, tuple[float, ...]]
    rest: tuple[float, ...]

    def __post_init__(self) -> None:
        rows = [self.rest, *self.layers.values()]
        numbers = np.array([self.densities, *rows], dtype=np.float64)  # a ValueError for rows of other lengths
        fits = numbers.shape[1] > 0 and np.isfinite(numbers).all() and (np.diff(numbers[0]) > 0).all()
        if not fits:
            raise ValueError("a table of latencies has finite numbers at rising densities")

    def milliseconds(self, names: Sequence[str], sizes: Sequence[int], densities: Sequence[float]) -> float:
        """Of the whole model: layers by their own densities, the rest by that of all weights."""
        overall = float(np.dot(sizes, densities) / sum(sizes))
        known = [(self.layers[name], density) for name, density in zip(names, densities, strict=True) if name in self.layers]
        return sum(self._at(density, times) for times, density in [*known, (self.rest, overall)])

    def _at(self, density: float, times: Sequence[float]) -> float:
        """Between what was measured; nothing is slower with more zeros, and disturbances only add time."""
        rising = np.minimum.accumulate(np.array(times)[::-1])[::-1]
        return float(np.interp(density, self.densities, rising))


class Latency:
    """The part of a run that holds its table, and measures it at the first step."""

    def __init__(self) -> None:
        self.table: LatencyTable | None = None

    def learn(self, sp: Run, precision: str) -> None:
        """Measure, in the first process for all, unless a saved state has brought the table."""
        if self.table is None:
            # by its name: serving is a floor above, and runs without this goal do not need it
            table = import_module("autosparse.serving.latency").measure(sp, precision) if leads() else None
            self.table = from_first_rank(table, sp.layers[0].stored.device)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        if self.table is None:
            return {}
        layers = {name: list(times) for name, times in self.table.layers.items()}
        return {"densities": list(self.table.densities), "layers": layers, "rest": list(self.table.rest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not state:
            self.table = None
            return
        layers = {str(name): tuple(map(float, times)) for name, times in state["layers"].items()}
        self.table = LatencyTable(tuple(map(float, state["densities"])), layers, tuple(map(float, state["rest"])))
