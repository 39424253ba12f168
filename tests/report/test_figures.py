"""Figures with matplotlib: what is drawn on the axis."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autosparse.report import Run, comparison, curves, figures, read_run
from autosparse.report.charts import Point
from autosparse.report.palette import RUNS

Maker = Callable[..., Path]
OF_RUNS = (
    figures.accuracy_over_time,
    figures.loss_over_time,
    figures.sparsity_over_time,
    figures.alpha_over_time,
    figures.train_flops_over_time,
    figures.test_flops_over_time,
    figures.layer_sparsity,
    figures.layer_flops,
    figures.frontier,
)
OF_ONE = (figures.layer_sparsity_over_time, figures.thresholds_over_time, figures.controller)


def new_axis() -> Axes:
    return Figure().add_subplot()


def test_a_curve_holds_the_runs_own_values(make_run: Maker) -> None:
    axis = new_axis()
    figures.sparsity_over_time([read_run(make_run())], axis)
    (line,) = axis.get_lines()
    assert list(line.get_xdata()) == [1, 2]
    assert list(line.get_ydata()) == pytest.approx([40, 80])
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("epoch", "zeros [%]")


@pytest.mark.parametrize("draw", OF_RUNS)
def test_figures_of_several_runs_have_title_labels_and_marks(make_run: Maker, draw: Callable[[list[Run], Axes], None]) -> None:
    axis = new_axis()
    draw([read_run(make_run("one", name="one")), read_run(make_run("two", name="two", method="str"))], axis)
    assert axis.get_title(loc="left")
    assert axis.get_xlabel()
    assert axis.has_data()
    legend = axis.get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} & {"one", "two", "str"}


@pytest.mark.parametrize("draw", OF_ONE)
def test_figures_of_one_run_have_a_line_a_layer(make_run: Maker, draw: Callable[[Run, Axes], None]) -> None:
    axis = new_axis()
    draw(read_run(make_run()), axis)
    assert len(axis.get_lines()) == 2
    assert axis.get_title(loc="left")


def test_names_are_drawn_as_they_are(make_run: Maker) -> None:
    runs = [read_run(make_run("one", name="cost $\\broken$")), read_run(make_run("two", name="_hidden"))]
    axis = new_axis()
    figures.sparsity_over_time(runs, axis)
    legend = axis.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 2
    assert figures.png(curves.sparsity(runs)).startswith(b"\x89PNG")


def test_a_png_is_large_enough_to_read_and_grows_with_its_rows(make_run: Maker) -> None:
    run = read_run(make_run())
    width, height = struct.unpack(">II", figures.png(curves.accuracy([run]))[16:24])
    assert width > 800
    assert height > 500
    many = [{"name": f"layer{place}", "weights": 10, "zeros": 5, "sparsity": 0.5, "macs": 100} for place in range(60)]
    long = read_run(make_run("long", result={"layers": many, "macs": None}))
    assert struct.unpack(">II", figures.png(comparison.layer_flops([long]))[16:24])[1] > 2 * height


def test_points_at_one_place_become_rings() -> None:
    points = [Point(str(place), "m", x, y, RUNS[0]) for place, (x, y) in enumerate([(80, 90), (80, 90), (95, 80), (80.01, 90)])]
    assert figures._beneath(points) == [0, 1, 0, 2]
