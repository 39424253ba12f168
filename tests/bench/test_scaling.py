"""The formula of docs/scaling.md, by hand."""

from __future__ import annotations

import pytest

from autosparse.bench.scaling import Step, exchange_seconds, packing_seconds, scaling, step_seconds


def test_a_ring_sends_each_part_twice_round() -> None:
    assert exchange_seconds(1e9, 1, 10) == 0
    # 14 messages of 125 MB at 1.25 GB/s, and as many latencies
    assert exchange_seconds(1e9, 8, 10, latency=0.001) == pytest.approx(14 * (0.1 + 0.001))


def test_a_step_waits_for_what_backward_does_not_hide() -> None:
    step = Step(0.3, 1e9, packing=0.01)
    alone = 0.3
    exchange = exchange_seconds(1e9, 8, 100)
    assert step_seconds(step, 1, 100) == alone, "one machine packs nothing"
    assert step_seconds(step, 8, 100) == pytest.approx(alone + 0.01 + exchange)
    assert step_seconds(step, 8, 100, overlap=0.5) == pytest.approx(alone + 0.01 + exchange - 0.1)
    assert step_seconds(step, 8, 100, overlap=1.0) == pytest.approx(alone + 0.01), "never less than nothing"


def test_a_run_is_a_mean_of_its_steps() -> None:
    dense, sparse, annealed = Step(1.0, 4e8), Step(0.4, 4e7), Step(0.8, 4e8)
    (cell,) = scaling(dense, sparse, annealed, 0.7, machines=(64,), gigabits=(1.0,))
    mean = 0.3 * step_seconds(sparse, 64, 1.0) + 0.7 * step_seconds(annealed, 64, 1.0)
    assert cell.sparse_seconds == pytest.approx(mean)
    assert cell.ratio == pytest.approx(step_seconds(dense, 64, 1.0) / mean)
    assert len(scaling(dense, sparse)) == 9


def test_bad_numbers_are_refused() -> None:
    for make in (
        lambda: Step(0.0, 1.0),
        lambda: exchange_seconds(1.0, 0, 1.0),
        lambda: exchange_seconds(1.0, 2, 0.0),
        lambda: scaling(Step(1.0, 1.0), Step(1.0, 1.0), annealed_share=0.5),
        lambda: packing_seconds(10, 0.0),
    ):
        with pytest.raises(ValueError, match="allowed"):
            make()


def test_packing_is_timed() -> None:
    assert packing_seconds(1000, 0.1) > 0
