"""Several seeds in one line: means, the deviation, the drop against the dense runs; and such lines in files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from autosparse.common.files import write_json, write_text
from autosparse.common.tables import Table
from autosparse.experiments.grid import Cell
from autosparse.experiments.runner import Outcome

SUFFIXES = (".md", ".csv", ".json")


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

    def cells(self) -> tuple[str, ...]:
        """Base, Top1(S), Drop %, S %, Train F, Test F: the paper's columns."""
        return (
            shown(self.base, 2, self.base_deviation),
            shown(self.accuracy, 2, self.deviation),
            shown(self.drop, 2),
            shown(self.sparsity, 2),
            shown(self.train_fraction, 3),
            shown(self.test_fraction, 3),
        )


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


def shown(value: float | None, places: int, spread: float | None = None) -> str:
    """A number as people read it, with its deviation where there is one."""
    if value is None:
        return ""
    return f"{value:.{places}f}" + (f" ± {spread:.{places}f}" if spread is not None else "")


def results(cells: Sequence[Cell], outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """The results of the runs that were finished."""
    ended = [outcomes[cell.name].result for cell in cells if cell.name in outcomes]
    return [result for result in ended if result is not None]


def failures(cells: Sequence[Cell], outcomes: Mapping[str, Outcome]) -> list[str]:
    """Why the others failed, each reason once."""
    failed = [outcomes[cell.name].message for cell in cells if cell.name in outcomes and outcomes[cell.name].status == "failed"]
    return list(dict.fromkeys(failed))


def with_failures(table: Table, groups: Sequence[Sequence[Cell]], outcomes: Mapping[str, Outcome]) -> Table:
    """The table, with a column of messages if a run of any row has failed; a row's runs are its group."""
    reasons = ["; ".join(failures(cells, outcomes)) for cells in groups]
    if not any(reasons):
        return table
    rows = [(*row, reason and f"FAILED: {reason}") for row, reason in zip(table.rows, reasons, strict=True)]
    return replace(table, headings=(*table.headings, "message"), rows=rows)


def write_table(stem: Path, table: Table, rows: Sequence[dict[str, Any]], content: Mapping[str, Any]) -> None:
    """STEM.md for people, STEM.csv with plain rows, STEM.json with these, the notes and other content."""
    texts, data, everything = (stem.with_name(stem.name + suffix) for suffix in SUFFIXES)
    write_text(texts, table.markdown())
    write_text(data, comma_separated(rows))
    write_json(everything, {**content, "rows": rows, "notes": list(table.notes)})


def comma_separated(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of plain numbers under the union of their keys; an absent value is an empty cell."""
    headings = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, headings, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
