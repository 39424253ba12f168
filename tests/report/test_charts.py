"""What the charts show, by hand; scales and labels for any input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosparse.report import Run, comparison, curves, palette, read_run
from autosparse.report.charts import MOST_POINTS, Curve, LineChart, labels, thinned
from autosparse.report.comparison import compare_runs

Maker = Callable[..., Path]


def test_the_papers_columns(make_run: Maker) -> None:
    (row,) = compare_runs([read_run(make_run(result={"base_accuracy": 0.8, "bleu": 25.5}))])
    assert (row.base, row.accuracy, row.sparsity) == pytest.approx((80.0, 75.0, 82.5))
    assert row.drop == pytest.approx(6.25)  # 5 points of 80
    assert (row.train_fraction, row.test_fraction, row.seconds, row.bleu) == (0.5, 650 / 1700, 12.0, 25.5)


def test_base_comes_from_the_dense_run_of_the_same_task_and_best_of_the_same_seed(make_run: Maker) -> None:
    sparse = read_run(make_run("sparse", seed=1))
    other_task = read_run(make_run("other", method="dense", recipe={"model": {"name": "large"}}, result={"accuracy": 0.99}))
    other_seed = read_run(make_run("dense0", method="dense", seed=0, result={"accuracy": 0.7}))
    same_seed = read_run(make_run("dense1", method="dense", seed=1, result={"accuracy": 0.9}))
    assert compare_runs([sparse, other_task])[0].base is None
    assert compare_runs([sparse, other_task, other_seed])[0].base == pytest.approx(70)
    assert compare_runs([sparse, other_task, other_seed, same_seed])[0].base == pytest.approx(90)
    dense = compare_runs([same_seed])[0]
    assert (dense.drop, dense.sparsity, dense.train_fraction, dense.test_fraction) == (None, 0.0, 1.0, 1.0)


def test_the_frontier_joins_what_nobody_beats(make_run: Maker) -> None:
    figures = {"weak": (0.5, 0.70), "good": (0.5, 0.80), "sparse": (0.9, 0.75), "worse": (0.8, 0.74)}
    runs = [
        read_run(make_run(name, name=name, result={"sparsity": zeros, "accuracy": reached}))
        for name, (zeros, reached) in figures.items()
    ]
    runs.append(read_run(make_run("dense", method="dense", name="dense")))
    chart = comparison.frontier(runs)
    assert {point.name for point in chart.points if point.best} == {"good", "sparse"}
    assert (chart.points[0].x, chart.points[0].y) == pytest.approx((50, 70))
    assert (chart.guide, chart.guide_name) == (pytest.approx(80), "dense")


def test_layers_cost_and_keep_what_the_result_says(make_run: Maker) -> None:
    run = read_run(make_run())
    flops = comparison.layer_flops([run])
    assert flops.x_label == "thousand MACs per sample"
    assert {row.name: (row.behind, *row.values) for row in flops.rows} == {
        "stem": (0.2, 0.2),
        "a": (1.0, pytest.approx(0.4)),
        "b": (0.5, pytest.approx(0.05)),
    }
    shares = comparison.layer_sparsity([run])
    assert [(row.name, row.values, row.text) for row in shares.rows] == [("a", (60.0,), "60.0 %"), ("b", (90.0,), "90.0 %")]
    assert shares.marks[0].guide == pytest.approx(82.5)  # the uniform distribution of the same zeros


def test_curves_of_one_run_with_the_dense_one_beside(make_run: Maker) -> None:
    folder = make_run()
    make_run("run/dense", method="dense")
    run = read_run(folder)
    chart = curves.accuracy([run])
    assert [(line.name, line.dashed, list(line.ys)) for line in chart.lines] == [
        ("tiny", False, [35.0, 70.0]),
        ("dense", True, [35.0, 70.0]),
    ]
    assert [line.name for line in curves.loss([run]).lines] == ["training", "dense training", "validation"]
    assert [list(line.ys) for line in curves.layer_sparsity(run).lines] == [
        pytest.approx([30, 60]),
        pytest.approx([45, 90]),
    ]
    assert [list(line.ys) for line in curves.controller(run).lines] == [[30, 82.5], pytest.approx([29, 82.4])]


def test_an_unfinished_run_shows_how_far_it_has_to_go(make_run: Maker) -> None:
    assert curves.loss([read_run(make_run(status="running", recipe={"train": {"epochs": 30}}))]).last_x == 30
    assert curves.loss([read_run(make_run("done"))]).last_x is None


def test_methods_without_thresholds_or_alpha_have_no_such_curves(make_run: Maker) -> None:
    lines: list[dict[str, Any]] = [
        {"epoch": 1, "sparsity": 0.8, "alpha": None, "thresholds": [None, None], "densities": [0.2, 0.2]}
    ]
    run = read_run(make_run(metrics=lines, method="rigl"))
    assert curves.thresholds(run).lines == ()
    assert curves.alpha([run]).lines == ()
    assert len(curves.layer_sparsity(run).lines) == 2


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.sampled_from(["x", "y"])), min_size=1, max_size=6))
def test_labels_are_unique(keys: list[tuple[str, int, str]]) -> None:
    runs = [Run(Path(folder), {}, {"name": name, "seed": seed, "status": "running"}, [], None) for name, seed, folder in keys]
    shown = labels(runs)
    assert len(set(shown)) == len(runs)
    assert all(label.startswith(name) for label, (name, _, _) in zip(shown, keys, strict=True))


def test_a_dense_run_beside_the_sparse_one_is_called_dense() -> None:
    info: dict[str, Any] = {"name": "digits", "seed": 0, "status": "running"}
    recipes: list[dict[str, Any]] = [{"method": {"name": "autosparse"}}, {"method": {"name": "dense"}}]
    assert labels([Run(Path("x"), recipe, info, [], None) for recipe in recipes]) == ["digits", "digits, dense"]


@given(st.integers(0, 3000))
def test_thinning_keeps_the_ends(count: int) -> None:
    xs, ys = thinned(list(range(count)), [float(value) for value in range(count)])
    assert len(xs) == len(ys) <= MOST_POINTS + 1
    assert xs[:1] == list(range(count))[:1]
    assert xs[-1:] == list(range(count))[-1:]


@given(st.lists(st.floats(-1e6, 1e6).map(lambda value: round(value, 3)), min_size=1), st.booleans())
def test_an_axis_holds_its_values_and_is_not_negative_for_nothing(values: list[float], log: bool) -> None:
    low, high, is_log = axis(values, log=log).y_range()
    assert low <= min(values) <= max(values) <= high
    assert low < high
    assert low >= 0 or min(values) < 0
    assert not is_log or low > 0


def axis(values: list[float], **options: Any) -> LineChart:
    line = Curve("a", list(range(len(values))), values, palette.DENSE)
    return LineChart("key", "title", "note", "x", "y", "", (line,), **options)


def test_axes_by_hand() -> None:
    assert axis([0.0, 97.0], low=0, high=100).y_range() == (0, 100, False)
    assert axis([0.001, 0.9], log=True).y_range() == pytest.approx((0.001 / 1.3, 1.17, True))
    assert not axis([0.1, 0.9], log=True).y_range()[2]


def test_layer_colours_run_from_the_first_depth_to_the_last() -> None:
    assert palette.of_layer(0, 54) == palette.DEPTHS[0]
    assert palette.of_layer(53, 54) == palette.DEPTHS[-1]
    assert palette.of_layer(0, 1) == palette.DEPTHS[0]
    assert len({palette.of_layer(place, 54) for place in range(54)}) == 54
