"""Figures with matplotlib. Every function draws runs on an axis that the caller made and returns nothing:

figure, axis = plt.subplots()
figures.sparsity_over_time([read_run("runs/a"), read_run("runs/b")], axis)
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from autosparse.report import comparison, curves
from autosparse.report.charts import Chart, LineChart, PointChart, RowChart
from autosparse.report.palette import DENSE
from autosparse.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT, ROW_HEIGHT, DPI = 6.4, 4.0, 0.22, 160
MOST_IN_LEGEND = 12
INK, PALE = "#30343c", "#d5d9e0"


def accuracy_over_time(runs: Sequence[Run], axis: Axes) -> None:
    """Validation accuracy in per cent over epochs; dense runs beside are dashed."""
    draw(curves.accuracy(runs), axis)


def loss_over_time(runs: Sequence[Run], axis: Axes) -> None:
    """Training loss over epochs; for one run also validation, dense and reference losses."""
    draw(curves.loss(runs), axis)


def sparsity_over_time(runs: Sequence[Run], axis: Axes) -> None:
    """Overall zeros in per cent over epochs."""
    draw(curves.sparsity(runs), axis)


def alpha_over_time(runs: Sequence[Run], axis: Axes) -> None:
    """Alpha over epochs."""
    draw(curves.alpha(runs), axis)


def train_flops_over_time(runs: Sequence[Run], axis: Axes) -> None:
    """Train F so far, over epochs."""
    draw(curves.train_cost(runs), axis)


def test_flops_over_time(runs: Sequence[Run], axis: Axes) -> None:
    """Test F over epochs."""
    draw(curves.test_cost(runs), axis)


def layer_sparsity_over_time(run: Run, axis: Axes) -> None:
    """Zeros of every layer of one run over epochs."""
    draw(curves.layer_sparsity(run), axis)


def thresholds_over_time(run: Run, axis: Axes) -> None:
    """Threshold of every layer of one run over epochs."""
    draw(curves.thresholds(run), axis)


def controller(run: Run, axis: Axes) -> None:
    """Sparsity wanted by the target's controller and reached, over steps."""
    draw(curves.controller(run), axis)


def layer_sparsity(runs: Sequence[Run], axis: Axes) -> None:
    """Final zeros of every layer against the uniform distribution."""
    draw(comparison.layer_sparsity(runs), axis)


def layer_flops(runs: Sequence[Run], axis: Axes) -> None:
    """Multiply-accumulates of every layer, dense and sparse."""
    draw(comparison.layer_flops(runs), axis)


def frontier(runs: Sequence[Run], axis: Axes) -> None:
    """Accuracy against sparsity, one point a run."""
    draw(comparison.frontier(runs), axis)


def draw(chart: Chart, axis: Axes) -> None:
    """Draw a chart with its title, labels and legend."""
    if isinstance(chart, LineChart):
        _lines(chart, axis)
    elif isinstance(chart, RowChart):
        _rows(chart, axis)
    else:
        _points(chart, axis)
    axis.set_title(chart.title, fontsize=12, fontweight="bold", loc="left", color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(PALE)
    axis.tick_params(colors=INK, labelsize=9, length=3)
    axis.set_axisbelow(True)
    handles, names = axis.get_legend_handles_labels()
    if len(names) > 1 or isinstance(chart, RowChart):
        if len(names) > MOST_IN_LEGEND:  # colours run with depth: the first, some between and the last tell enough
            kept = sorted({round(place * (len(names) - 1) / (MOST_IN_LEGEND - 1)) for place in range(MOST_IN_LEGEND)})
            handles, names = [handles[place] for place in kept], [names[place] for place in kept]
        axis.legend(handles, names, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)


def png(chart: Chart) -> bytes:
    """A chart as a PNG file of its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = max(HEIGHT, 1.2 + ROW_HEIGHT * len(chart.rows)) if isinstance(chart, RowChart) else HEIGHT
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    FigureCanvasAgg(figure)
    draw(chart, figure.add_subplot())
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.15)
    return buffer.getvalue()


def _lines(chart: LineChart, axis: Axes) -> None:
    for line in chart.lines:
        ys = [float("nan") if value is None else value for value in line.ys]
        width = 1.8 if len(chart.lines) <= MOST_IN_LEGEND else 1.1
        marker = "o" if len(line.xs) == 1 else None
        axis.plot(
            line.xs,
            ys,
            color=line.colour.light,
            linestyle="--" if line.dashed else "-",
            lw=width,
            label=_plain(line.name),
            marker=marker,
        )
    known = [value for line in chart.lines for value in line.ys if value is not None]
    scale = chart.scale(known)
    axis.set_ylim(scale.low, scale.high)
    if scale.log:
        axis.set_yscale("log")
    if chart.last_x is not None:
        axis.set_xlim(right=chart.last_x)
    axis.locator_params(axis="x", integer=True)
    axis.grid(color=PALE, lw=0.6)
    axis.set_xlabel(chart.x_label, color=INK)
    axis.set_ylabel(_with_unit(chart.y_label, chart.unit), color=INK)


def _rows(chart: RowChart, axis: Axes) -> None:
    places = list(range(len(chart.rows)))
    if any(row.behind is not None for row in chart.rows):
        axis.barh(places, [row.behind or 0.0 for row in chart.rows], color=PALE, height=0.72, label=chart.behind_name)
    for number, mark in enumerate(chart.marks):
        values = [row.values[number] for row in chart.rows]
        if len(chart.marks) == 1:
            axis.barh(places, [value or 0.0 for value in values], color=mark.colour.light, height=0.72, label=_plain(mark.name))
        else:
            shown = [(value, place) for value, place in zip(values, places, strict=True) if value is not None]
            axis.scatter(
                [value for value, _ in shown],
                [place for _, place in shown],
                color=mark.colour.light,
                s=22,
                label=_plain(mark.name),
            )
        if mark.guide is not None:
            colour = INK if len(chart.marks) == 1 else mark.colour.light
            name = chart.guide_name if number == 0 else "_nolegend_"
            axis.axvline(mark.guide, color=colour, linestyle="--", lw=1.1, label=name)
    axis.set_yticks(places, [_plain(row.name) for row in chart.rows])
    axis.invert_yaxis()
    axis.set_xlim(0, chart.high)
    axis.grid(axis="x", color=PALE, lw=0.6)
    axis.set_xlabel(_with_unit(chart.x_label, chart.unit), color=INK)


def _points(chart: PointChart, axis: Axes) -> None:
    best = sorted((point.x, point.y) for point in chart.points if point.best)
    axis.plot([x for x, _ in best], [y for _, y in best], color=DENSE.light, lw=1, zorder=1)
    for group in dict.fromkeys(point.group for point in chart.points):
        members = [point for point in chart.points if point.group == group]
        colour = members[0].colour.light
        axis.scatter(
            [point.x for point in members], [point.y for point in members], color=colour, s=42, label=_plain(group), zorder=2
        )
    if chart.guide is not None:
        axis.axhline(chart.guide, color=INK, linestyle="--", lw=1.1, label=chart.guide_name)
    axis.grid(color=PALE, lw=0.6)
    axis.set_xlabel(_with_unit(chart.x_label, chart.unit), color=INK)
    axis.set_ylabel(_with_unit(chart.y_label, chart.unit), color=INK)


def _plain(name: str) -> str:
    """A name that matplotlib takes as it is: no mathematics between dollars, no hiding after an underscore."""
    shown = name.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _with_unit(label: str, unit: str) -> str:
    return f"{label} [{unit}]" if unit else label
