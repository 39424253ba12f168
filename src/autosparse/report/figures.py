"""The one renderer of charts, with matplotlib: on the caller's axis, as PNG, or as SVG for the page.

figure, axis = plt.subplots()
figures.sparsity_over_time([read_run("runs/a"), read_run("runs/b")], axis)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, TypeVar

from autosparse.report import comparison, curves
from autosparse.report.charts import Chart, LineChart, Point, PointChart, RowChart
from autosparse.report.palette import DENSE, Colour
from autosparse.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT, ROW_HEIGHT, DPI = 6.4, 4.0, 0.22, 160
PAGE_WIDTH, WIDE_PAGE_WIDTH, PAGE_HEIGHT = 5.0, 9.6, 2.7
MOST_IN_LEGEND = 12
LONGEST_NAME = 32  # of a layer beside its row
MARKERS = {"dot": "o", "square": "s", "triangle": "^"}
NEAR = 0.012  # of the axes: points closer than this hide each other
INK, PALE = "#30343c", "#d5d9e0"
Shown = TypeVar("Shown", Run, Sequence[Run])


def _drawing(chart_of: Callable[[Shown], Chart]) -> Callable[[Shown, Axes], None]:
    """A function that draws one kind of chart of a run, or of several, on an axis."""
    return lambda runs, axis: draw(chart_of(runs), axis)


accuracy_over_time = _drawing(curves.accuracy)
loss_over_time = _drawing(curves.loss)
sparsity_over_time = _drawing(curves.sparsity)
alpha_over_time = _drawing(curves.alpha)
train_flops_over_time = _drawing(curves.train_cost)
test_flops_over_time = _drawing(curves.test_cost)
layer_sparsity_over_time = _drawing(curves.layer_sparsity)
thresholds_over_time = _drawing(curves.thresholds)
controller = _drawing(curves.controller)
layer_sparsity = _drawing(comparison.layer_sparsity)
layer_flops = _drawing(comparison.layer_flops)
frontier = _drawing(comparison.frontier)


def draw(chart: Chart, axis: Axes) -> None:
    """Draw a chart with its title, labels and legend."""
    _draw_bare(chart, axis)
    axis.set_title(chart.title, fontsize=12, fontweight="bold", loc="left", color=INK)
    handles, names = axis.get_legend_handles_labels()
    if len(names) > 1 or isinstance(chart, RowChart):
        if len(names) > MOST_IN_LEGEND:  # colours run with depth: the first, some between and the last tell enough
            shown = sorted({round(place * (len(names) - 1) / (MOST_IN_LEGEND - 1)) for place in range(MOST_IN_LEGEND)})
            handles, names = [handles[place] for place in shown], [names[place] for place in shown]
        beyond_values = 1.12 if isinstance(chart, RowChart) and any(row.text for row in chart.rows) else 1.01
        axis.legend(
            handles, names, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(beyond_values, 1.0), borderaxespad=0
        )


def _draw_bare(chart: Chart, axis: Axes) -> None:
    """Draw a chart without title and legend."""
    if isinstance(chart, LineChart):
        _lines(chart, axis)
    elif isinstance(chart, RowChart):
        _rows(chart, axis)
    else:
        _points(chart, axis)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(PALE)
    axis.tick_params(colors=INK, labelsize=9, length=3)
    axis.set_axisbelow(True)


def png(chart: Chart) -> bytes:
    """A chart as a PNG file."""
    figure, axis = _new_figure(chart, WIDTH, HEIGHT)
    figure.set_facecolor("white")
    draw(chart, axis)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.15)
    return buffer.getvalue()


@dataclass(frozen=True)
class Area:
    """The part of a drawing that holds the values: left, top, width and height as fractions, and the ends of both axes."""

    box: tuple[float, float, float, float]
    x: tuple[float, float]
    y: tuple[float, float]
    log: bool


def svg(chart: Chart, wide: bool = False) -> tuple[str, Area]:
    """A chart as SVG inside a page, in the page's colours and without title and legend; each series can be addressed."""
    import matplotlib as mpl

    # text stays text, and the same chart gives the same markup
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "autosparse"}):
        figure, axis = _new_figure(chart, WIDE_PAGE_WIDTH if wide else PAGE_WIDTH, PAGE_HEIGHT)
        figure.patch.set_visible(False)
        axis.patch.set_visible(False)
        figure.set_layout_engine("constrained")
        _draw_bare(chart, axis)
        buffer = StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    frame = axis.get_position()
    area = Area(
        (frame.x0, 1 - frame.y1, frame.width, frame.height), axis.get_xlim(), axis.get_ylim(), axis.get_yscale() == "log"
    )
    spoken = f"{axis.get_ylabel() or 'layers'} over {axis.get_xlabel()}"
    return _for_page(buffer.getvalue(), _colours(chart), spoken), area


def _new_figure(chart: Chart, width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = 1.2 + ROW_HEIGHT * len(chart.rows) if isinstance(chart, RowChart) else 0.0
    figure = Figure(figsize=(width, max(height, rows)))
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _colours(chart: Chart) -> set[Colour]:
    if isinstance(chart, LineChart):
        return {line.colour for line in chart.lines}
    return {mark.colour for mark in (chart.marks if isinstance(chart, RowChart) else chart.points)} | {DENSE}


def _for_page(markup: str, colours: set[Colour], spoken: str) -> str:
    """Matplotlib's SVG without its preamble, metadata and names, in colours that follow the page's scheme."""
    markup = markup[markup.index("<svg") :]
    markup = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", markup, flags=re.DOTALL)
    size = re.search(r'viewBox="([^"]+)"', markup)
    assert size is not None
    name = spoken.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    markup = re.sub(r"<svg[^>]*>", f'<svg viewBox="{size[1]}" role="img" aria-label="{name}">', markup, count=1)
    markup = re.sub(r'<g id="series-(\d+)">', r'<g data-series="\1">', markup)
    markup = re.sub(r'<g id="[^"]*">', "<g>", markup).replace("xlink:href", "href")
    for colour in sorted(colours):
        markup = markup.replace(colour.light, colour.css)
    return markup.replace(INK, "var(--ink)").replace(PALE, "var(--pale)")


def _lines(chart: LineChart, axis: Axes) -> None:
    for place, line in enumerate(chart.lines):
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
            gid=f"series-{place}",
        )
    low, high, log = chart.y_range()
    axis.set_ylim(low, high)
    if log:
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
            bars = [value or 0.0 for value in values]
            axis.barh(places, bars, color=mark.colour.light, height=0.72, label=_plain(mark.name), gid="series-0")
        else:
            shown = [(value, place) for value, place in zip(values, places, strict=True) if value is not None]
            axis.scatter(
                [value for value, _ in shown],
                [place for _, place in shown],
                color=mark.colour.light,
                s=22,
                label=_plain(mark.name),
                gid=f"series-{number}",
            )
        if mark.guide is not None:
            colour = INK if len(chart.marks) == 1 else mark.colour.light
            name = chart.guide_name if number == 0 else "_nolegend_"
            axis.axvline(mark.guide, color=colour, linestyle="--", lw=1.1, label=name, gid=f"series-{number}")
    for place, row in enumerate(chart.rows):
        axis.text(1.01, place, row.text, transform=axis.get_yaxis_transform(), va="center", fontsize=8, color=INK)
    axis.set_yticks(places, [_plain(_short(row.name)) for row in chart.rows])
    axis.set_ylim(len(chart.rows) - 0.5, -0.5)
    axis.set_xlim(0, chart.high)
    axis.grid(axis="x", color=PALE, lw=0.6)
    axis.set_xlabel(_with_unit(chart.x_label, chart.unit), color=INK)


def _points(chart: PointChart, axis: Axes) -> None:
    best = sorted((point.x, point.y) for point in chart.points if point.best)
    axis.plot([x for x, _ in best], [y for _, y in best], color=DENSE.light, lw=1, zorder=1)
    beneath = _beneath(chart.points)
    for number, group in enumerate(dict.fromkeys(point.group for point in chart.points)):
        members = [(point, below) for point, below in zip(chart.points, beneath, strict=True) if point.group == group]
        colour = members[0][0].colour.light
        axis.scatter(
            [point.x for point, _ in members],
            [point.y for point, _ in members],
            facecolors=[colour if below == 0 else "none" for _, below in members],
            edgecolors=colour,
            linewidths=1.6,
            s=[38 * (1 + 0.9 * below) ** 2 for _, below in members],
            marker=MARKERS[members[0][0].shape],
            zorder=2,
            gid=f"series-{number}",
        )
        # the legend shows a full mark, also where a group has rings alone
        axis.scatter([], [], color=colour, s=38, marker=MARKERS[members[0][0].shape], label=_plain(group))
    if chart.guide is not None:
        axis.axhline(chart.guide, color=INK, linestyle="--", lw=1.1, label=chart.guide_name)
    axis.grid(color=PALE, lw=0.6)
    axis.set_xlabel(_with_unit(chart.x_label, chart.unit), color=INK)
    axis.set_ylabel(_with_unit(chart.y_label, chart.unit), color=INK)


def _beneath(points: Sequence[Point]) -> list[int]:
    """How many earlier points lie at the place of each: it becomes a ring around them."""
    wide, high = (max(values) - min(values) or 1.0 for values in ([each.x for each in points], [each.y for each in points]))
    return [
        sum(abs(point.x - other.x) < NEAR * wide and abs(point.y - other.y) < NEAR * high for other in points[:place])
        for place, point in enumerate(points)
    ]


def _plain(name: str) -> str:
    """A name that matplotlib shows literally: dollars start no formula, a leading underscore hides nothing."""
    shown = name.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _short(name: str) -> str:
    """The end of a long name, where layers differ."""
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"


def _with_unit(label: str, unit: str) -> str:
    return f"{label} [{unit}]" if unit else label
