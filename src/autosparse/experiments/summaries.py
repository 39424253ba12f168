"""Several seeds in one line: means, the deviation, and the drop against the dense runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any


@dataclass(frozen=True)
class Summary:
    """One line of numbers; accuracies, drop and sparsity in per cent, costs as fractions of the dense run."""

    runs: int
    base: float | None = None
    base_deviation: float | None = None
    accuracy: float | None = None
    deviation: float | None = None
    drop: float | None = None
    sparsity: float | None = None
    train_fraction: float | None = None
    test_fraction: float | None = None
    seconds: float | None = None


def summarise(
    results: Sequence[Mapping[str, Any]], bases: Sequence[Mapping[str, Any]], measure: str = "accuracy", scale: float = 100.0
) -> Summary:
    """The line of finished runs and of the dense runs beside them; `measure` is what they are judged by."""
    accuracies, dense = ([scale * float(result[measure]) for result in group] for group in (results, bases))
    accuracy, base = mean(accuracies), mean(dense)
    sparsity = mean(values(results, "sparsity"))
    return Summary(
        runs=len(results),
        base=base,
        base_deviation=deviation(dense),
        accuracy=accuracy,
        deviation=deviation(accuracies),
        drop=None if base is None or accuracy is None else drop(base, accuracy),
        sparsity=None if sparsity is None else 100 * sparsity,
        train_fraction=mean(values(results, "train_fraction")),
        test_fraction=mean(values(results, "test_fraction")),
        seconds=mean(values(results, "seconds")),
    )


def drop(base: float, sparse: float) -> float | None:
    """The paper's Drop %: what is lost, in per cent of the base."""
    return 100 * (base - sparse) / base if base else None


def mean(numbers: Sequence[float]) -> float | None:
    """None of nothing."""
    return fmean(numbers) if numbers else None


def deviation(numbers: Sequence[float]) -> float | None:
    """The standard deviation of a sample (n - 1); one run has none."""
    return stdev(numbers) if len(numbers) > 1 else None


def values(results: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """The numbers of the runs that have one."""
    return [float(result[key]) for result in results if result.get(key) is not None]
