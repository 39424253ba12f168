"""Charts over time: accuracy, loss, sparsity, thresholds, alpha, costs and the target's controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autosparse.report import palette
from autosparse.report.charts import Curve, LineChart, labels, percent, thinned
from autosparse.report.palette import Colour
from autosparse.report.runs import Run, block, number


def accuracy(runs: Sequence[Run]) -> LineChart:
    """Validation accuracy, dense runs dashed."""
    word = "Token accuracy" if all(run.translates for run in runs) else "Accuracy"
    return _chart(
        runs,
        "accuracy",
        word,
        "On the validation data after every epoch.",
        word.lower(),
        "%",
        _with_baselines(runs, "accuracy", "", True),
    )


def accuracy_over_seconds(runs: Sequence[Run]) -> LineChart:
    """Validation accuracy over the wall clock, where there is a dense run to compare with."""
    return _accuracy_over(_with_dense(runs), "seconds", "wall clock")


def accuracy_over_processor_time(runs: Sequence[Run]) -> LineChart:
    """The same over processor time, which a busy machine hardly changes; of runs of one thread, where it means something."""
    shown = _with_dense(runs)
    single = all(block(run.recipe, "train").get("threads") == 1 for run in shown)
    return _accuracy_over(shown if single else [], "processor_seconds", "processor time")


def _with_dense(runs: Sequence[Run]) -> list[Run]:
    """All runs and their dense ones; none where there is nothing to compare with."""
    shown = [one for run in runs for one in (run, run.dense) if one is not None]
    return shown if len(shown) > 1 and any(run.is_dense for run in shown) else []


def _accuracy_over(runs: Sequence[Run], clock: str, name: str) -> LineChart:
    key = f"accuracy-over-{clock.replace('_', '-')}"
    if not runs or any(clock not in entry for run in runs for entry in run.metrics):
        return _chart([], key, "", "", "", "", ())
    word = "token accuracy" if all(run.translates for run in runs) else "accuracy"
    lines = []
    for place, (run, label) in enumerate(zip(runs, labels(runs), strict=True)):
        xs, ys = thinned([number(entry.get(clock)) or 0.0 for entry in run.metrics], run.curve("accuracy")[1])
        colour = palette.DENSE if run.is_dense else palette.of_run(place)
        lines.append(Curve(label, xs, [percent(value) for value in ys], colour, run.is_dense))
    note = "After every epoch, over seconds of training and validation; dense runs dashed."
    return LineChart(key, f"{word.capitalize()} over the {name}", note, "seconds", word, "%", _not_empty(lines))


def loss(runs: Sequence[Run]) -> LineChart:
    """Training loss and validation loss of one run, training loss of several."""
    lines = _with_baselines(runs, "loss", "training" if len(runs) == 1 else "")
    note = "Mean over every epoch."
    if any(block(run.recipe, "train").get("label_smoothing") for run in runs):
        note += " Label smoothing raises the training loss only."
    if len(runs) == 1:
        # lighter shades of the training curves would be hard to distinguish: validation has its own colours
        lines += _lines(runs, "validation_loss", "validation", [palette.RUNS[1]])
        reference = runs[0].reference
        if reference is not None:
            lines += _lines([reference], "loss", "dense reference", [palette.RUNS[2]], dashed=True)
    else:
        note = note.replace("Mean", "Training loss, mean")
    return _chart(runs, "loss", "Loss", note, "loss", "", lines)


def sparsity(runs: Sequence[Run]) -> LineChart:
    """Overall fraction of zeros."""
    note = "Zeros among all sparsified weights."
    return _chart(runs, "sparsity", "Overall sparsity", note, "zeros", "%", _lines(runs, "sparsity", in_percent=True), 0, 100)


def alpha(runs: Sequence[Run]) -> LineChart:
    """The share of their gradient that pruned weights receive."""
    note = "Share of their gradient that pruned weights still receive."
    return _chart(runs, "alpha", "Gradient annealing", note, "alpha", "", _lines(runs, "alpha"), 0)


def train_cost(runs: Sequence[Run]) -> LineChart:
    """Train F so far; dense is 1."""
    note = "FLOPs of training so far; the whole dense run is 1. Counted, not timed."
    return _chart(runs, "train-flops", "Train F", note, "fraction of dense FLOPs", "", _lines(runs, "train_fraction"), 0, 1)


def test_cost(runs: Sequence[Run]) -> LineChart:
    """Test F of the net after every epoch; dense is 1."""
    note = "FLOPs of one forward pass of the net after every epoch; the dense net is 1. Counted, not timed."
    return _chart(runs, "test-flops", "Test F", note, "fraction of dense FLOPs", "", _lines(runs, "test_fraction"), 0, 1)


def learning_rate(runs: Sequence[Run]) -> LineChart:
    """The learning rate at the end of every epoch."""
    note = "At the end of every epoch."
    return _chart(runs, "learning-rate", "Learning rate", note, "learning rate", "", _lines(runs, "lr"), 0)


def layer_sparsity(run: Run) -> LineChart:
    """Fraction of zeros of every layer."""
    lines = _layer_lines(run, "densities", lambda density: 100 * (1 - density))
    note = "Zeros of every layer; colours run from the first layer to the last."
    return _chart([run], "layer-sparsity-over-time", "Sparsity of every layer", note, "zeros", "%", lines, 0, 100)


def thresholds(run: Run) -> LineChart:
    """Threshold of every layer, on a log axis where they differ widely."""
    lines = _layer_lines(run, "thresholds", float)
    note = "Weights smaller than the threshold are zero; a layer with several shows their mean."
    return _chart([run], "thresholds", "Thresholds", note, "threshold", "", lines, log=True)


def controller(run: Run) -> LineChart:
    """The sparsity that the target's controller aimed at, and what was reached."""
    history = (run.result or {}).get("controller") or []
    steps = [float(step) for step, *_ in history]
    lines = []
    for place, (name, dashed) in enumerate((("wanted", True), ("reached", False)), start=1):
        xs, ys = thinned(steps, [percent(number(entry[place])) for entry in history])
        lines.append(Curve(name, xs, ys, palette.DENSE if dashed else palette.RUNS[0], dashed))
    note = "The sparsity that the target's controller aimed at, and the sparsity that was reached, step by step."
    return LineChart("controller", "Target controller", note, "step", "zeros", "%", _not_empty(lines), 0, 100)


def _chart(
    runs: Sequence[Run],
    key: str,
    title: str,
    note: str,
    y_label: str,
    unit: str,
    lines: Sequence[Curve],
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
) -> LineChart:
    # an unfinished run shows how far it still has to go
    planned = [run.epochs for run in runs if run.epochs is not None and not run.finished and run.metrics]
    last = float(max(planned)) if planned else None
    return LineChart(key, title, note, "epoch", y_label, unit, _not_empty(lines), low, high, last, log)


def _not_empty(lines: Sequence[Curve]) -> tuple[Curve, ...]:
    return tuple(line for line in lines if not line.empty)


def _lines(
    runs: Sequence[Run],
    key: str,
    what: str = "",
    colours: Sequence[Colour] | None = None,
    dashed: bool = False,
    in_percent: bool = False,
) -> list[Curve]:
    lines = []
    for place, (run, label) in enumerate(zip(runs, labels(runs), strict=True)):
        xs, ys = thinned(*run.curve(key))
        name = what or label if len(runs) == 1 else f"{label}, {what}" if what else label
        is_baseline = run.is_dense and len(runs) > 1
        colour = colours[place] if colours else palette.DENSE if is_baseline else palette.of_run(place)
        values = [percent(value) for value in ys] if in_percent else ys
        lines.append(Curve(name, xs, values, colour, dashed or is_baseline))
    return lines


def _with_baselines(runs: Sequence[Run], key: str, what: str = "", in_percent: bool = False) -> list[Curve]:
    """The runs' curves, and those of their dense baselines."""
    lines = _lines(runs, key, what, in_percent=in_percent)
    for place, (run, label) in enumerate(zip(runs, labels(runs), strict=True)):
        if run.dense:
            name = " ".join(filter(None, ("dense", what))) if len(runs) == 1 else f"dense baseline of {label}"
            colour = palette.DENSE if len(runs) == 1 else palette.of_run(place)
            lines += _lines([run.dense], key, name, [colour], dashed=True, in_percent=in_percent)
    return lines


def _layer_lines(run: Run, key: str, of: Callable[[float], float]) -> list[Curve]:
    names = run.layer_names
    lines = []
    for place, name in enumerate(names):
        values = [_at(entry.get(key), place) for entry in run.metrics]
        shown = [None if value is None else of(value) for value in values]
        xs, ys = thinned([entry["epoch"] for entry in run.metrics], shown)
        lines.append(Curve(name, xs, ys, palette.of_layer(place, len(names))))
    return lines


def _at(values: list[float | None] | None, place: int) -> float | None:
    return number(values[place]) if values and place < len(values) else None
