"""The planner's arithmetic on made-up times, and one decision on real ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import autosparse
from autosparse import kernels
from autosparse.compute import planner as planning
from autosparse.compute import timing
from autosparse.compute.planner import DENSE, SAMPLED_DENSITIES, Decision, Line, Passes, Planner, Sample, Times, Workload
from autosparse.kernels.geometry import Convolution

WORKLOAD = Workload(Convolution(1, 1000, (1, 64), 1000), linear=True, threads=1)  # a million weights, 64 million multiply-adds


class World:
    """Made-up times in seconds: dense passes cost 1, a sparse one `fixed` + `slope` * density; compression is given."""

    def __init__(self, fixed: float = 0.0, slope: float = 4.0, compress: float = 0.0, operators: float = 0.0) -> None:
        self.fixed, self.slope, self.compress, self.operators = fixed, slope, compress, operators
        self.asked: list[Workload] = []
        self.now = 0.0

    def measure(self, workload: Workload, densities: Sequence[float]) -> Times:
        self.asked.append(workload)
        self.now += 0.5
        samples = []
        for density in densities:
            sparse = self.fixed + self.slope * density
            samples.append(Sample(round(density * workload.weights), sparse, sparse, sparse, self.compress))
        return Times(1.0, 1.0, 1.0, self.operators, tuple(samples))

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
    assert World(compress=0.5).planner().decide("a", WORKLOAD, 0.2, entries="all") == DENSE


def test_small_layers_do_not_pay_for_the_operators() -> None:
    """At density .2 three sparse passes save .6 together."""
    assert World(operators=0.5).planner().decide("a", WORKLOAD, 0.2) == Passes(True, True, True)
    assert World(operators=0.7).planner().decide("a", WORKLOAD, 0.2) == DENSE


def test_a_dense_weight_gradient_is_never_sparse() -> None:
    assert World().planner().decide("a", WORKLOAD, 0.01, entries="all") == Passes(True, True, False)


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


def test_one_workload_is_measured_once_for_all_densities() -> None:
    world = World()
    planner = world.planner()
    for layer, density in (("a", 0.2), ("b", 0.5), ("c", 0.001)):
        planner.decide(layer, WORKLOAD, density)
    assert world.asked == [WORKLOAD]
    assert planner.seconds_spent == 0.5
    threaded = Workload(WORKLOAD.conv, linear=True, threads=2)
    planner.decide("a", threaded, 0.2)
    assert world.asked == [WORKLOAD, threaded], "other threads, other times"


def test_small_layers_are_dense_without_being_measured() -> None:
    world = World(slope=0.0)
    planner = world.planner()
    small = Workload(Convolution(1, 1000, (1, 19), 1000), linear=True, threads=1)
    assert small.work == 19_000_000
    assert planner.decide("a", small, 0.01) == DENSE
    large = Workload(Convolution(2, 100, (12, 12), 100, (3, 3), (1, 1), (1, 1)), linear=False, threads=1)
    assert large.work == 25_920_000  # 2 * 144 pixels, 9 * 100 * 100 weights
    assert planner.decide("a", large, 0.01) == Passes(True, True, True)
    assert world.asked == [large]


def through_a_file(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    torch.save(state, folder / "state.pt")
    loaded: dict[str, Any] = torch.load(folder / "state.pt", weights_only=True)
    return loaded


def test_a_planner_goes_on_from_a_saved_one(tmp_path: Path) -> None:
    world = World(operators=0.01, compress=0.03)
    planner = world.planner()
    planner.decide("a", WORKLOAD, 0.2)
    planner.decide("b", Workload(Convolution(3, 100, (12, 12), 100, (3, 3)), linear=False, threads=1), 0.4)
    other = World(slope=100.0)  # would decide otherwise
    resumed = other.planner()
    resumed.load_state_dict(through_a_file(planner.state_dict(), tmp_path))
    assert resumed.state_dict() == planner.state_dict()
    for density in (0.24, 0.255, 0.3, 0.2, 0.01):  # with the same hysteresis
        assert resumed.decide("a", WORKLOAD, density) == planner.decide("a", WORKLOAD, density)
    assert resumed.decisions == planner.decisions
    assert resumed.times(WORKLOAD) == planner.times(WORKLOAD)
    assert other.asked == []
    assert resumed.seconds_spent == 1.0


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


@pytest.mark.parametrize("linear", [True, False])
def test_real_times(native: None, linear: bool) -> None:
    torch.set_num_threads(1)
    conv = Convolution(1, 640, (1, 64), 512) if linear else Convolution(2, 64, (26, 26), 64, (3, 3), (1, 1), (1, 1))
    workload = Workload(conv, linear, threads=1)
    planner = Planner()
    passes = planner.decide("layer", workload, 0.1)
    times = planner.times(workload)
    for sample, density in zip(times.samples, SAMPLED_DENSITIES, strict=True):
        assert abs(sample.nonzeros - density * workload.weights) < 0.05 * workload.weights
        assert all(0 < seconds < math.inf for seconds in sample[1:-1])
        assert sample.both is None
    assert all(0 < times.dense(part) < math.inf for part in Passes._fields)
    assert planner.seconds_spent > 0
    decision = planner.decisions["layer"]
    assert decision.passes == passes
    assert decision.seconds <= decision.dense_seconds


def test_fused_pointwise_gradients_are_timed_together(native: None) -> None:
    torch.set_num_threads(1)
    workload = Workload(Convolution(2, 64, (26, 26), 64), False, threads=1, fused=True)
    times = timing.measure(workload, SAMPLED_DENSITIES)
    assert all(sample.both is not None and 0 < sample.both < math.inf for sample in times.samples)


def test_a_vocabulary_layer_is_timed_on_a_part_of_it(native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(timing, "MOST_WEIGHTS", 2**14)
    workload = Workload(Convolution(1, 64, (1, 32), 1024), True, threads=1)
    monkeypatch.setattr(timing, "_in_turn", lambda groups: [dict.fromkeys(calls, 1.0) for calls in groups])
    times = timing.measure(workload, [0.5])
    assert times.dense_forward == times.samples[0].input == times.samples[0].compress == 4.0, "a quarter took 1 second"
    assert abs(times.samples[0].nonzeros - 2**15) < 2**12


def test_both_gradients_in_one_pass_are_charged_once() -> None:
    """Sparse gradients of 1.2 each would lose against dense ones, 1.5 for both together wins."""

    def measure(workload: Workload, densities: Sequence[float]) -> Times:
        return Times(1.0, 1.0, 1.0, 0.0, tuple(Sample(round(d * workload.weights), 2, 1.2, 1.2, 0, 1.5) for d in densities))

    planner = Planner(measure, lambda: 0.0)
    assert planner.decide("a", WORKLOAD, 0.1) == Passes(False, True, True)
    assert planner.decisions["a"].seconds == pytest.approx(2.5)
    assert planner.decide("b", WORKLOAD, 0.1, entries="all") == DENSE
    assert planner.decide("c", WORKLOAD, 0.1, "mask", 0.2) == DENSE, "a mask has its own pattern, and a pass of its own"


def test_the_gradient_that_dense_passes_read_is_charged_once() -> None:
    """With a dense weight gradient it has to be made, so a sparse input gradient saves less than it seems to."""

    def measure(workload: Workload, densities: Sequence[float]) -> Times:
        samples = (Sample(round(d * workload.weights), 2.0, 0.9, 0.5, 0.15) for d in densities)
        return Times(1.0, 1.0, 1.0, 0.0, tuple(samples), dense_grad=0.4)

    planner = Planner(measure, lambda: 0.0)
    assert planner.decide("a", WORKLOAD, 0.1, entries="all") == DENSE
    assert planner.decisions["a"].seconds == planner.decisions["a"].dense_seconds == pytest.approx(3.4)
    assert planner.decide("b", WORKLOAD, 0.1) == Passes(False, True, True)
    assert planner.decisions["b"].seconds == pytest.approx(1.0 + 0.9 + 0.5 + 0.15)


FUSED = Workload(Convolution(16, 16, (8, 8), 16, (3, 3), padding=(1, 1), images_last=True), False, threads=1, fused=True)


def planner_of_two(sparse: float, alone: float | None) -> tuple[Planner, dict[str, Workload]]:
    """Dense passes of 1 second; of two fused layers one has become sparse, whose passes take as long as is said."""
    workload = replace(FUSED, conv=replace(FUSED.conv, in_channels=512, out_channels=512))

    def measure(workload: Workload, densities: Sequence[float]) -> Times:
        samples = (Sample(round(d * workload.weights), sparse, sparse, sparse, 0.0) for d in densities)
        return Times(1.0, 1.0, 1.0, 0.0, tuple(samples), dense_alone=alone)

    planner = Planner(measure, lambda: 0.0)
    planner.decide("sparse", workload, 0.5)
    planner.decide("dense", workload, 0.9)
    return planner, {"sparse": workload, "dense": workload, "small": FUSED}


@pytest.mark.parametrize(
    ("alone", "are_fused", "pays"),
    [(2.0, False, False), (2.6, False, True), (2.4, False, False), (2.4, True, True), (2.3, True, False), (None, False, True)],
)
def test_fused_layers_are_judged_together(alone: float | None, are_fused: bool, pays: bool) -> None:
    """Three sparse passes of half a second and three dense ones among fused neighbours, against both layers alone."""
    planner, layers = planner_of_two(0.5, alone)
    assert planner.fusing_pays(layers, are_fused) is pays


def test_a_layer_beyond_the_kernels_reach_is_not_judged() -> None:
    planner, layers = planner_of_two(0.5, 2.6)
    measure = planner._measure

    def measured(workload: Workload, densities: Sequence[float]) -> Times:
        if workload.conv.images == 10**6:
            raise ValueError("too large for the sparse kernels")
        return measure(workload, densities)

    planner._measure = measured
    huge = replace(layers["dense"], conv=replace(layers["dense"].conv, images=10**6))
    assert planner.fusing_pays({**layers, "huge": huge}, are_fused=False)


def test_layers_that_lose_together_are_decided_dense() -> None:
    planner, layers = planner_of_two(0.5, 2.0)
    assert planner.decisions["sparse"] == Decision(Passes(True, True, True), 1.5, 2.0)
    planner.leave_dense(layers)
    assert planner.decisions == {"sparse": Decision(DENSE, 2.0, 2.0)}


@pytest.mark.parametrize(("alone", "sparse_layers"), [(1.0, 0), (4.0, 2)])
def test_a_model_whose_fused_layers_lose_together_is_left_to_torch(
    native: None, monkeypatch: pytest.MonkeyPatch, alone: float, sparse_layers: int
) -> None:
    """Each of its convolutions would gain among fused neighbours."""

    def measure(workload: Workload, densities: Sequence[float]) -> Times:
        samples = (Sample(round(d * workload.weights), 0.5, 0.5, 0.5, 0.0) for d in densities)
        return Times(1.0, 1.0, 1.0, 0.0, tuple(samples), dense_alone=alone)

    monkeypatch.setattr(planning, "LEAST_WORK", 0)
    monkeypatch.setattr(timing, "measure", measure)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16))
    sp = autosparse.sparsify(net, autosparse.AutoSparse(alpha=0.0, start_sparsity=0.7), epochs=1, steps_per_epoch=9)
    sp.compute("auto")
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=1e-4), lr=0.01)
    sp.bind(optimizer)
    for _ in range(2):
        net(torch.randn(kernels.lanes(), 3, 8, 8)).square().mean().backward()
        optimizer.step()
    assert sum(len(plan.passes) == 3 for plan in sp.layer_plans()) == sparse_layers


def test_dense_passes_among_fused_neighbours_need_the_gradient_in_their_order(native: None) -> None:
    torch.set_num_threads(1)
    times = timing.measure(FUSED, SAMPLED_DENSITIES)
    assert times.dense_grad > 0
    assert times.dense_alone


def test_the_threads_must_be_those_of_the_workload(native: None) -> None:
    torch.set_num_threads(1)
    with pytest.raises(ValueError, match="a workload of 2 threads, but torch uses 1"):
        timing.measure(Workload(WORKLOAD.conv, True, 2), [0.1])
