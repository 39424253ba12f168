"""The paper's figures: which runs they show, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autosparse.experiments.grid import Cell
from autosparse.experiments.paper.facts import rows_of
from autosparse.experiments.paper.scales import Scale
from autosparse.report import comparison, curves, figures, palette
from autosparse.report.charts import LineChart, RowChart
from autosparse.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAIN, TUNED, PAPER_DECAY = "resnet50_main", "autotune", 2.0**-15
MEST_80, STR_80, AUTOSPARSE_80, AUTOSPARSE_90 = 4, 6, 7, 13  # rows of table 1
STR_80_DECAY = 1.7e-5
DECAYS = ("constant", "linear", "cosine", "sigmoid", "sigmoid-cosine", "exponential")
NETWORKS = {"resnet50": 0, "mobilenet": 2}  # their rows of table 5 with eps2 = 0.005
Labelled = dict[str, Cell]
Runs = Mapping[str, Run]


@dataclass(frozen=True)
class PaperFigure:
    """One figure: its runs by the names in its legend, and how it is drawn from them."""

    title: str
    runs: Callable[[Scale], Labelled]
    draw: Callable[[Runs, Figure], None]
    width: float
    height: float = 4.2
    row_height: float = 0.0  # inches that every layer adds
    networks: tuple[str, ...] = ("resnet50",)


def _per_layer(scale: Scale) -> Labelled:
    rows = rows_of("table1")
    named = {"AutoSparse": AUTOSPARSE_80, "STR": STR_80, "MEST": MEST_80}
    return {name: scale.row(rows[place])[0] for name, place in named.items()}


def _distributions(scale: Scale) -> Labelled:
    cells = _per_layer(scale)
    return {name: cells[name] for name in ("AutoSparse", "STR")}


def _decays(scale: Scale) -> Labelled:
    changes = {"method.zero_epoch": "never", **scale.decay(PAPER_DECAY)}
    return {name: scale.variant(MAIN, AUTOSPARSE_80, f"-{name}", {**changes, "method.schedule": name}) for name in DECAYS}


def _over_time(scale: Scale) -> Labelled:
    return {
        "AutoSparse": scale.variant(MAIN, AUTOSPARSE_80),
        "STR": scale.row(rows_of("table1")[STR_80])[0],
        "OptG": scale.other("resnet50-optg-80"),
    }


def _early(scale: Scale) -> Labelled:
    start = {"method.s_init": -5.0}
    strong, weak = ({**start, **scale.decay(decay)} for decay in (PAPER_DECAY, STR_80_DECAY))
    return {
        "AutoSparse 80": scale.variant(MAIN, AUTOSPARSE_80, "-early", strong),
        "AutoSparse 90": scale.variant(MAIN, AUTOSPARSE_90, "-early", strong),
        "STR": scale.variant(MAIN, STR_80, "-early", strong),
        "STR 80": scale.variant(MAIN, STR_80, "-early-80", weak),
    }


def _tuned(scale: Scale) -> Labelled:
    rows = rows_of("table5")
    return {scale.label(network): scale.row(rows[place])[0] for network, place in NETWORKS.items()}


def _tuned_and_dense(scale: Scale) -> Labelled:
    dense = {f"{scale.label(network)}, dense": scale.base(network)[0] for network in NETWORKS}
    return {**_tuned(scale), **dense}


def _draw_flops(runs: Runs, figure: Figure) -> None:
    _draw_rows(comparison.layer_flops(list(runs.values())), runs, figure.add_subplot())


def _draw_distributions(runs: Runs, figure: Figure) -> None:
    chart = comparison.layer_sparsity(list(runs.values()))
    # both runs have about as many zeros, so one line stands for either spread uniformly
    _draw_rows(
        replace(chart, marks=(chart.marks[0], *(replace(mark, guide=None) for mark in chart.marks[1:]))),
        runs,
        figure.add_subplot(),
    )


def _draw_decays(runs: Runs, figure: Figure) -> None:
    left, middle, right = figure.subplots(1, 3)
    figures.draw(_renamed(curves.alpha(list(runs.values())), runs), left)
    _draw_enlarged(_renamed(curves.sparsity(list(runs.values())), runs), middle, right)
    _without_legend(left)


def _draw_over_time(runs: Runs, figure: Figure) -> None:
    figures.draw(_renamed(curves.sparsity(list(runs.values())), runs), figure.add_subplot())


def _draw_early(runs: Runs, figure: Figure) -> None:
    left, middle, right = figure.subplots(1, 3)
    _draw_enlarged(_renamed(curves.sparsity(list(runs.values())), runs), left, middle)
    figures.draw(_renamed(curves.accuracy(list(runs.values())), runs), right)
    _without_legend(middle)


def _draw_enlarged(chart: LineChart, whole: Axes, enlarged: Axes) -> None:
    """The curves twice: from 0 to 100, and as high as they are in the last two thirds of the run."""
    figures.draw(chart, whole)
    _without_legend(whole)
    figures.draw(replace(chart, title="The same, enlarged"), enlarged)
    late = [value for line in chart.lines for value in line.ys[len(line.ys) // 3 :] if value is not None]
    enlarged.set_ylim(min(late) - 0.5, max(late) + 0.5)


def _draw_alpha(runs: Runs, figure: Figure) -> None:
    axis = figure.add_subplot()
    figures.draw(_renamed(curves.alpha(list(runs.values())), runs), axis)
    axis.legend(fontsize=8, frameon=False, loc="upper right")
    tuning = next(iter(runs.values())).recipe["method"]["autotune"]["epochs"]
    axis.axvspan(0.5, tuning + 0.5, color=figures.PALE, alpha=0.5, lw=0)
    axis.annotate("tuned", (0.5 * tuning + 0.5, 0.02), xycoords=("data", "axes fraction"), ha="center", fontsize=9)


def _draw_tuned(runs: Runs, figure: Figure) -> None:
    names = list(runs)[: len(NETWORKS)]
    for axis, name in zip(figure.subplots(1, len(names)), names, strict=True):
        tuned, dense = runs[name], runs[f"{name}, dense"]
        shown = curves.accuracy([tuned, dense])
        zeros = replace(curves.sparsity([tuned]).lines[0], name="sparsity", colour=palette.RUNS[1])
        accuracies = (replace(shown.lines[0], name="accuracy"), replace(shown.lines[1], name="accuracy, dense"))
        chart = replace(shown, title=name, y_label="accuracy and zeros", lines=(*accuracies, zeros), low=0.0, high=100.0)
        figures.draw(chart, axis)
        axis.legend(fontsize=8, frameon=False, loc="lower right")


def _without_legend(axis: Axes) -> None:
    """For a panel whose neighbour has the legend of both."""
    legend = axis.get_legend()
    if legend is not None:
        legend.remove()


def _renamed(chart: LineChart, runs: Runs) -> LineChart:
    """The figure's own names on the curves, in place of the runs'."""
    lines = tuple(replace(line, name=name) for name, line in zip(runs, chart.lines, strict=True))
    return replace(chart, lines=lines)


def _draw_rows(chart: RowChart, runs: Runs, axis: Axes) -> None:
    """One row per layer, the runs first in the legend."""
    marks = tuple(replace(mark, name=name) for name, mark in zip(runs, chart.marks, strict=True))
    figures.draw(replace(chart, marks=marks), axis)
    named = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    order = [*runs, *(name for name in named if name not in runs)]
    handles = [named[name] for name in order]
    axis.legend(handles, order, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, fontsize=8, frameon=False)


FIGURES = {
    "fig1a": PaperFigure("FLOPs of every layer at 80 % sparsity", _per_layer, _draw_flops, 7.2, 1.8, 0.26),
    "fig1b": PaperFigure("Sparsity under every decay of alpha", _decays, _draw_decays, 14.0),
    "fig2": PaperFigure("Sparsity over time", _over_time, _draw_over_time, 7.2),
    "fig3": PaperFigure("Thresholds that start early (s = -5): STR against AutoSparse", _early, _draw_early, 14.0),
    "fig4": PaperFigure("Learned distribution of the zeros", _distributions, _draw_distributions, 7.2, 1.8, 0.26),
    "fig5": PaperFigure("Auto-tuned alpha", _tuned, _draw_alpha, 8.0, networks=tuple(NETWORKS)),
    "fig6": PaperFigure(
        "Auto-tuned runs: accuracy and sparsity", _tuned_and_dense, _draw_tuned, 11.0, networks=tuple(NETWORKS)
    ),
}
