"""Runs side by side: the paper's columns, the frontier, and the sparsity and cost of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosparse.report import palette
from autosparse.report.charts import LayerRow, Mark, Point, PointChart, RowChart, labels, percent
from autosparse.report.runs import DENSE, Run, block, number


@dataclass(frozen=True)
class Compared:
    """A row of the comparison table; accuracies, drop and sparsity in percent, costs as fractions of the dense run."""

    label: str
    method: str
    finished: bool
    base: float | None
    accuracy: float | None
    drop: float | None
    sparsity: float | None
    train_fraction: float | None
    test_fraction: float | None
    seconds: float | None
    bleu: float | None


def compare_runs(runs: Sequence[Run]) -> list[Compared]:
    """One row per run with the columns of the paper's tables. As there, Drop is relative to Base."""
    rows = []
    for run, label in zip(runs, labels(runs), strict=True):
        base, accuracy = base_accuracy(run, runs), run.last("accuracy")
        drop = None if not base or accuracy is None or run.is_dense else 100 * (base - accuracy) / base
        sparsity = 0.0 if run.is_dense else run.last("sparsity")
        train, test = (1.0 if run.is_dense else run.last(key) for key in ("train_fraction", "test_fraction"))
        rows.append(
            Compared(
                label,
                run.method,
                run.finished,
                percent(base),
                percent(accuracy),
                drop,
                percent(sparsity),
                train,
                test,
                run.last("seconds"),
                number((run.result or {}).get("bleu")),
            )
        )
    return rows


def base_accuracy(run: Run, runs: Sequence[Run]) -> float | None:
    """Accuracy of the run's dense baseline, else of a run among `runs` with the same net, data, length and, if any, seed."""
    if run.is_dense:
        return run.last("accuracy")
    recorded = number((run.result or {}).get("base_accuracy"))
    if recorded is not None:
        return recorded
    if run.dense is not None:
        return run.dense.last("accuracy")
    twins = [other for other in runs if other.is_dense and other.finished and _task(other) == _task(run)]
    twins.sort(key=lambda other: other.info.get("seed") != run.info.get("seed"))
    return twins[0].last("accuracy") if twins else None


def frontier(runs: Sequence[Run]) -> PointChart:
    """Accuracy against sparsity; the line joins the runs that no other run beats in both."""
    results = [
        (row.label, row.method, row.sparsity, row.accuracy)
        for row in compare_runs(runs)
        if row.method != DENSE and row.sparsity is not None and row.accuracy is not None
    ]
    # all dense runs have sparsity 0: one level instead of points leaves the axis to the sparse runs
    dense = [one.last("accuracy") for run in runs for one in (run, run.dense) if one is not None and one.is_dense]
    levels = [100 * value for value in dense if value is not None]
    methods = list(dict.fromkeys(method for _, method, _, _ in results))
    points = [
        Point(
            name,
            method,
            x,
            y,
            palette.of_run(methods.index(method)),
            best=not any((a >= x and b > y) or (a > x and b >= y) for _, _, a, b in results),
            shape=palette.shape_of_run(methods.index(method)),
        )
        for name, method, x, y in results
    ]
    word = "token accuracy" if runs and all(run.translates for run in runs) else "accuracy"
    note = "Up and to the right is better. The line joins the runs that no other beats in both. Rings surround equal runs."
    title = f"{word.capitalize()} against sparsity"
    guide = sum(levels) / len(levels) if levels else None
    name = f"dense, mean of {len(levels)}" if len(levels) > 1 else "dense"
    return PointChart("frontier", title, note, "zeros", word, "%", tuple(points), guide, name)


def layer_sparsity(runs: Sequence[Run]) -> RowChart:
    """Final sparsity of every layer, against the same number of zeros spread uniformly."""
    marks, tables = [], []
    for place, (run, label) in enumerate(zip(runs, labels(runs), strict=True)):
        final = _final_sparsities(run)
        if final:
            marks.append(Mark(label, palette.of_run(place), percent(run.last("sparsity"))))
            tables.append({name: 100 * value for name, value in final.items()})
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = tuple(_row(name, tuple(table.get(name) for table in tables), " %") for name in names)
    note = "Zeros of every layer at the end. The dashed line is the same number of zeros spread uniformly."
    return RowChart(
        "layer-sparsity", "Distribution over layers", note, "zeros", "%", tuple(marks), rows, guide_name="uniform", high=100.0
    )


def layer_flops(runs: Sequence[Run]) -> RowChart:
    """Multiply-accumulates per layer for one sample, dense and sparse."""
    marks, tables, dense = [], [], dict[str, float]()
    for place, (run, label) in enumerate(zip(runs, labels(runs), strict=True)):
        counted = _macs(run)
        if counted and not run.is_dense:
            marks.append(Mark("sparse" if len(runs) == 1 else label, palette.of_run(place)))
            final = _final_sparsities(run)
            tables.append({name: macs * (1 - final.get(name, 0.0)) for name, macs in counted.items()})
            dense |= counted
    largest = max(dense.values(), default=0.0)
    divisor, prefix = next(
        ((size, word) for size, word in ((1e9, "billion "), (1e6, "million "), (1e3, "thousand ")) if largest >= size),
        (1.0, ""),
    )
    rows = tuple(
        _row(name, tuple(_over(table.get(name), divisor) for table in tables), "", macs / divisor)
        for name, macs in dense.items()
    )
    note = (
        "Multiply-accumulates (MACs) of one sample; one MAC is two FLOPs. The pale bar is the dense layer. Counted, not timed."
    )
    return RowChart(
        "layer-flops", "FLOPs of every layer", note, f"{prefix}MACs per sample", "", tuple(marks), rows, behind_name="dense"
    )


def _row(name: str, values: tuple[float | None, ...], unit: str, behind: float | None = None) -> LayerRow:
    value = values[0] if len(values) == 1 else None
    text = "" if value is None else f"{value:.1f}{unit}" if unit else f"{value / behind:.0%}" if behind else ""
    return LayerRow(name, values, behind, text)


def _final_sparsities(run: Run) -> dict[str, float]:
    if run.layers:
        return {str(layer["name"]): float(layer["sparsity"]) for layer in run.layers}
    densities: list[float | None] = next((entry["densities"] for entry in run.metrics[::-1] if entry.get("densities")), [])
    return {name: 1 - value for name, value in zip(run.layer_names, densities, strict=False) if value is not None}


def _macs(run: Run) -> dict[str, float]:
    counted = {str(name): float(macs) for name, macs in ((run.result or {}).get("macs") or {}).items() if macs}
    return counted or {str(layer["name"]): float(layer["macs"]) for layer in run.layers if layer.get("macs")}


def _task(run: Run) -> tuple[object, ...]:
    return block(run.recipe, "model"), block(run.recipe, "data"), run.epochs


def _over(value: float | None, divisor: float) -> float | None:
    return None if value is None else value / divisor
