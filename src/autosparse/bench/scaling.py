"""How a run scales over machines: from the time of a step, the bytes that ranks exchange, and the network's speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from autosparse.common.words import require

MACHINES = (8, 64, 512)
GIGABITS = (1.0, 10.0, 100.0)
LATENCY = 50e-6  # seconds of one message in a data centre's Ethernet
BACKWARD = 2 / 3  # of a step: during this part DDP sends the gradients that are ready
CALLS = 5


@dataclass(frozen=True)
class Step:
    """One step on one machine: its seconds, what packing adds, and the bytes of gradients that it exchanges."""

    seconds: float
    exchanged_bytes: float
    packing: float = 0.0

    def __post_init__(self) -> None:
        require(self.seconds > 0, "seconds", self.seconds, "more than 0")
        require(self.exchanged_bytes >= 0, "exchanged_bytes", self.exchanged_bytes, "at least 0")
        require(self.packing >= 0, "packing", self.packing, "at least 0")


@dataclass(frozen=True)
class Cell:
    """Dense and sparse steps on so many machines over such a network."""

    machines: int
    gigabits: float
    dense_seconds: float
    sparse_seconds: float

    @property
    def ratio(self) -> float:
        """How many times as fast a sparse step is."""
        return self.dense_seconds / self.sparse_seconds


def exchange_seconds(exchanged_bytes: float, machines: int, gigabits: float, latency: float = LATENCY) -> float:
    """A ring all-reduce: 2 (N - 1) messages, each of the N-th part of the bytes."""
    require(machines >= 1, "machines", machines, "at least 1")
    require(gigabits > 0, "gigabits", gigabits, "more than 0")
    bytes_per_second = gigabits * 1e9 / 8
    return 2 * (machines - 1) * (exchanged_bytes / machines / bytes_per_second + latency)


def step_seconds(step: Step, machines: int, gigabits: float, overlap: float = 0.0, latency: float = LATENCY) -> float:
    """t_N = t + packing + max(0, exchange - overlap * BACKWARD * t); `overlap` from 0, none, to 1, all of backward."""
    require(0 <= overlap <= 1, "overlap", overlap, "between 0 and 1")
    packing = step.packing if machines > 1 else 0.0
    hidden = overlap * BACKWARD * step.seconds
    return step.seconds + packing + max(0.0, exchange_seconds(step.exchanged_bytes, machines, gigabits, latency) - hidden)


def scaling(
    dense: Step,
    sparse: Step,
    annealed: Step | None = None,
    annealed_share: float = 0.0,
    machines: Sequence[int] = MACHINES,
    gigabits: Sequence[float] = GIGABITS,
    overlap: float = 0.0,
) -> list[Cell]:
    """Mean steps of a whole run for every number of machines and network; `annealed` are its steps while alpha is above 0."""
    require(0 <= annealed_share <= 1, "annealed_share", annealed_share, "between 0 and 1")
    require(annealed is not None or not annealed_share, "annealed_share", annealed_share, "0 without the time of such a step")
    cells = []
    for count in machines:
        for speed in gigabits:
            mean = (1 - annealed_share) * step_seconds(sparse, count, speed, overlap)
            if annealed is not None:
                mean += annealed_share * step_seconds(annealed, count, speed, overlap)
            cells.append(Cell(count, speed, step_seconds(dense, count, speed, overlap), mean))
    return cells


def packing_seconds(parameters: int, density: float) -> float:
    """Time here what the communication hook does with a mask: picking active gradients, and putting them back."""
    require(parameters >= 1, "parameters", parameters, "at least 1")
    require(0 < density <= 1, "density", density, "above 0 and up to 1")
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(parameters, generator=generator) < density
    gradient = torch.randn(parameters, generator=generator)

    def once() -> float:
        begin = time.perf_counter()
        packed = gradient.masked_select(mask)
        gradient.zero_().masked_scatter_(mask, packed)
        return time.perf_counter() - begin

    return statistics.median(once() for _ in range(CALLS))
