"""The planner's arithmetic on made-up times, and one decision on real ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autosparse.kernels import timing
from autosparse.kernels.geometry import Convolution
from autosparse.kernels.planner import DENSE, Line, Passes, Planner, Sample, Times, Workload

WORKLOAD = Workload(Convolution(1, 100, (1, 64), 100), linear=True, threads=1)  # 10,000 weights


class World:
    """Made-up times in seconds: dense passes cost 1, a sparse one `fixed` + `slope` * density; compression is given."""

    def __init__(
        self, fixed: float = 0.0, slope: float = 4.0, compress: float = 0.0, transpose: float = 0.0, operators: float = 0.0
    ) -> None:
        self.fixed, self.slope, self.compress, self.transpose, self.operators = fixed, slope, compress, transpose, operators
        self.asked: list[float] = []
        self.now = 0.0

    def measure(self, workload: Workload, density: float, dense_too: bool) -> Sample:
        self.asked.append(density)
        self.now += 0.5
        dense = 1.0 if dense_too else math.inf
        sparse = self.fixed + self.slope * density
        nonzeros = round(density * workload.weights)
        return Sample(nonzeros, dense, dense, dense, sparse, sparse, sparse, self.compress, self.transpose, self.operators)

    def planner(self) -> Planner:
        return Planner(self.measure, lambda: self.now)


def test_a_line_through_two_points() -> None:
    line = Line.fit([(10, 3.0), (20, 5.0)])
    assert (line.fixed, line.slope) == pytest.approx((1.0, 0.2))
    assert line.at(50) == pytest.approx(11.0)


def test_lines_never_promise_negative_times() -> None:
    assert Line.fit([(10, 5.0), (20, 3.0)]) == Line(4.0, 0.0)
    assert Line.fit([(10, 1.0), (20, 3.0)]) == Line(0.0, 0.14)  # (10 + 60) / (100 + 400)
    assert Line.fit([(10, 2.0)]) == Line(0.0, 0.2)
    assert Line.fit([(0, 2.0)]) == Line(2.0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 10)), min_size=1, max_size=6), st.integers(0, 10**7))
def test_predictions_are_never_negative(points: list[tuple[int, float]], at: int) -> None:
    assert Line.fit(points).at(at) >= 0


def test_sparse_where_it_is_faster() -> None:
    planner = World().planner()  # a sparse pass is faster below a density of 1/4
    assert planner.decide("a", WORKLOAD, 0.3) == DENSE
    assert planner.decide("b", WORKLOAD, 0.2) == Passes(True, True, True)
    assert planner.decisions["b"].seconds == pytest.approx(2.4)
    assert planner.decisions["b"].dense_seconds == pytest.approx(3.0)


def test_compression_is_shared_by_the_passes() -> None:
    """At density .2 each sparse pass saves .2: three together pay for a compression of .5, two would not."""
    assert World(compress=0.5).planner().decide("a", WORKLOAD, 0.2) == Passes(True, True, True)
    assert World(compress=0.5).planner().decide("a", WORKLOAD, 0.2, wanted="all") == DENSE


def test_the_transpose_is_charged_to_the_input_gradient() -> None:
    assert World(transpose=0.3).planner().decide("a", WORKLOAD, 0.2) == Passes(True, False, True)


def test_small_layers_do_not_pay_for_the_operators() -> None:
    """At density .2 three sparse passes save .6 together."""
    assert World(operators=0.5).planner().decide("a", WORKLOAD, 0.2) == Passes(True, True, True)
    assert World(operators=0.7).planner().decide("a", WORKLOAD, 0.2) == DENSE


def test_a_dense_weight_gradient_is_never_sparse() -> None:
    assert World().planner().decide("a", WORKLOAD, 0.01, wanted="all") == Passes(True, True, False)


def test_a_mask_has_its_own_density_and_compression() -> None:
    planner = World().planner()
    assert planner.decide("a", WORKLOAD, 0.1, "mask", 0.3) == Passes(True, True, False)
    assert planner.decide("b", WORKLOAD, 0.1, "mask", 0.2) == Passes(True, True, True)
    assert World(compress=0.3).planner().decide("c", WORKLOAD, 0.1, "mask", 0.2) == Passes(True, True, False)


def test_a_small_gain_changes_nothing() -> None:
    planner = World().planner()
    assert planner.decide("a", WORKLOAD, 0.26) == DENSE
    assert planner.decide("a", WORKLOAD, 0.24) == DENSE  # 4 % faster
    assert planner.decide("a", WORKLOAD, 0.23) == Passes(True, True, True)  # 8 %
    assert planner.decide("a", WORKLOAD, 0.255) == Passes(True, True, True)  # 2 % slower than dense: not worth a change
    assert planner.decide("a", WORKLOAD, 0.28) == DENSE


def test_one_workload_is_measured_once() -> None:
    world = World()
    planner = world.planner()
    for layer in ("a", "b", "c"):
        planner.decide(layer, WORKLOAD, 0.2)
    assert world.asked == [0.2, 0.1]
    assert planner.seconds_spent == 1.0
    planner.decide("a", WORKLOAD, 0.06)
    assert len(world.asked) == 2, "within the range that is trusted"
    planner.decide("a", WORKLOAD, 0.04)
    assert world.asked == [0.2, 0.1, 0.04, 0.02]
    planner.decide("a", Workload(WORKLOAD.conv, linear=True, threads=2), 0.2)
    assert len(world.asked) == 6, "other threads, other times"


def test_nothing_is_measured_for_a_dense_layer() -> None:
    world = World(slope=0.0)
    assert world.planner().decide("a", WORKLOAD, 0.7) == DENSE
    assert world.asked == []


def test_a_layer_that_becomes_dense_again_is_forgotten() -> None:
    planner = World().planner()
    planner.decide("a", WORKLOAD, 0.1)
    assert planner.decide("a", WORKLOAD, 0.9) == DENSE
    assert "a" not in planner.decisions


@pytest.mark.parametrize("density", [-0.1, 1.1])
def test_a_density_is_a_fraction(density: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        World().planner().decide("a", WORKLOAD, density)


def test_a_mask_needs_its_density() -> None:
    with pytest.raises(ValueError, match="a mask, and only a mask"):
        World().planner().decide("a", WORKLOAD, 0.1, "mask")
    with pytest.raises(ValueError, match="a mask, and only a mask"):
        World().planner().decide("a", WORKLOAD, 0.1, "active", 0.3)


def test_unmeasured_times_are_not_trusted() -> None:
    assert not Times().trusts(100)


@pytest.mark.parametrize("linear", [True, False])
def test_real_times(native: None, linear: bool) -> None:
    torch.set_num_threads(1)
    conv = Convolution(1, 64, (1, 50), 48) if linear else Convolution(2, 16, (9, 9), 24, (3, 3), (2, 2), (1, 1))
    workload = Workload(conv, linear, threads=1)
    planner = Planner()
    passes = planner.decide("layer", workload, 0.1)
    sample = planner.measure(workload, 0.1).samples[0]
    assert abs(sample.nonzeros - 0.1 * workload.weights) < 0.05 * workload.weights
    assert all(0 < seconds < math.inf for name, seconds in vars(sample).items() if name != "nonzeros")
    assert planner.seconds_spent > 0
    decision = planner.decisions["layer"]
    assert decision.passes == passes
    assert decision.seconds <= decision.dense_seconds


def test_the_threads_must_be_those_of_the_workload(native: None) -> None:
    torch.set_num_threads(1)
    with pytest.raises(ValueError, match="a workload of 2 threads, but torch uses 1"):
        timing.measure(Workload(WORKLOAD.conv, True, 2), 0.1, True)
