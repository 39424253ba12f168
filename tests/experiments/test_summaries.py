"""Means, deviations and drops, with numbers worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosparse.experiments.tables import deviation, drop, summarise

from .parts import result


def test_a_line_by_hand() -> None:
    line = summarise([result(0.96), result(0.98), result(0.97)], [result(0.99, 0.0), result(1.0, 0.0), result(0.98, 0.0)])
    assert line.runs == 3
    assert math.isclose(line.base or 0, 99.0)
    assert math.isclose(line.accuracy or 0, 97.0)
    # squares of -1, 1, 0 over n - 1 = 2
    assert math.isclose(line.deviation or 0, 1.0)
    assert math.isclose(line.drop or 0, 100 * 2 / 99)
    assert math.isclose(line.sparsity or 0, 90.0)
    assert (line.train_fraction, line.test_fraction, line.seconds) == (0.5, pytest.approx(0.2), 4.0)


def test_the_drop_is_the_papers() -> None:
    assert round(drop(77.01, 76.77) or 0, 2) == 0.31
    assert round(drop(71.95, 64.18) or 0, 1) == 10.8
    assert drop(0.0, 10.0) is None


def test_one_run_has_no_deviation_and_none_has_nothing() -> None:
    assert deviation([97.0]) is None
    empty = summarise([], [])
    assert (empty.runs, empty.accuracy, empty.drop, empty.seconds) == (0, None, None, None)


def test_a_missing_base_leaves_the_rest() -> None:
    line = summarise([result(0.9)], [])
    assert (line.base, line.drop) == (None, None)
    assert line.accuracy == 90.0


def test_another_measure_keeps_its_own_scale() -> None:
    line = summarise([result(0.5, bleu=27.57)], [result(0.5, bleu=27.83)], "bleu", 1.0)
    assert line.accuracy == 27.57
    assert round(line.drop or 0, 2) == 0.93


@given(st.lists(st.floats(0.1, 1.0), min_size=2, max_size=6), st.floats(0.1, 1.0))
def test_a_drop_is_negative_exactly_when_the_sparse_net_is_better(accuracies: list[float], base: float) -> None:
    line = summarise([result(each) for each in accuracies], [result(base)])
    assert line.accuracy is not None
    assert line.drop is not None
    assert line.base is not None
    assert (line.drop < 0) == (line.accuracy > line.base)
    assert (line.deviation or 0) >= 0


def test_numbers_survive_json() -> None:
    line = asdict(summarise([result(0.9)], [result(0.95)]))
    assert json.loads(json.dumps(line)) == line


@pytest.mark.parametrize("key", ["sparsity", "train_fraction"])
def test_a_run_without_a_number_is_left_out_of_its_mean(key: str) -> None:
    line = summarise([{**result(0.9), key: None}, {**result(0.9), key: 0.4}], [])
    assert getattr(line, key) == (40.0 if key == "sparsity" else 0.4)
