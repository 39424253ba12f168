import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosparse import schedules

PROGRESS = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    ("epoch", "factor"),
    [
        (0, 1.0),
        (4, 0.996057),
        (5, 0.995504),
        (20, 0.973403),
        (25, 0.952574),
        (50, 0.5),
        (70, 0.206107),
        (90, 0.024472),
        (99, 0.002787),
        (100, 0.002473),
    ],
)
def test_sigmoid_cosine_over_100_epochs(epoch: int, factor: float) -> None:
    assert schedules.annealing("sigmoid-cosine", epoch, 100) == pytest.approx(factor, abs=5e-7)


@pytest.mark.parametrize(("epoch", "factor"), [(9, 1.0), (10, 0.999702), (11, 0.998809), (88, 0.042296), (89, 0.035622)])
def test_decay_after_nine_tuned_epochs_of_100(epoch: int, factor: float) -> None:
    assert schedules.annealing("sigmoid-cosine", epoch - 9, 100 - 9) == pytest.approx(factor, abs=5e-7)


def test_which_curve_wins() -> None:
    cosine_wins = [p for p in (0.0, 0.02, 0.0402, 0.51, 0.7, 0.9596) if schedules.cosine(p) > schedules.sigmoid(p)]
    sigmoid_wins = [p for p in (0.0404, 0.2, 0.49, 0.9598, 1.0) if schedules.sigmoid(p) > schedules.cosine(p)]
    assert len(cosine_wins) == 6
    assert len(sigmoid_wins) == 5


@pytest.mark.parametrize(
    ("schedule", "epoch", "factor"),
    [
        ("cosine", 0, 1.0),
        ("cosine", 10, 0.5),
        ("cosine", 20, 0.0),
        ("sigmoid", 0, 0.9975273768),  # 1 / (1 + e^-6)
        ("sigmoid", 5, 0.9525741268),  # 1 / (1 + e^-3)
        ("linear", 5, 0.75),
        ("linear", 20, 0.0),
        ("exponential", 0, 1.0),
        ("exponential", 2, 0.3678794412),  # e^(-.5 * 2)
        ("constant", 19, 1.0),
    ],
)
def test_annealing_by_name(schedule: str, epoch: int, factor: float) -> None:
    assert schedules.annealing(schedule, epoch, 20, beta=0.5) == pytest.approx(factor, abs=1e-9)


def test_exponential_defaults_to_beta_one_and_has_no_horizon() -> None:
    assert schedules.annealing("exponential", 3, 1) == pytest.approx(math.exp(-3.0))


@given(schedule=st.sampled_from(schedules.ALPHA_SCHEDULES), epochs=st.tuples(st.floats(-5, 120), st.floats(-5, 120)))
def test_every_decay_stays_in_the_unit_interval_and_never_rises(schedule: str, epochs: tuple[float, float]) -> None:
    early, late = (schedules.annealing(schedule, epoch, 100, beta=0.3) for epoch in sorted(epochs))
    assert 0.0 <= late <= early <= 1.0


@pytest.mark.parametrize("schedule", ["sigmoid-cosine", "cosine", "sigmoid", "linear", "constant", "exponential"])
def test_time_before_the_start_counts_as_the_start(schedule: str) -> None:
    assert schedules.annealing(schedule, -3, 10) == schedules.annealing(schedule, 0, 10)


@pytest.mark.parametrize("schedule", ["sigmoid-cosine", "cosine", "sigmoid", "linear", "constant"])
def test_time_beyond_the_horizon_counts_as_its_end(schedule: str) -> None:
    assert schedules.annealing(schedule, 14, 10) == schedules.annealing(schedule, 10, 10)


def test_unknown_schedule_names_the_near_miss_and_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"'cosin'.*allowed: sigmoid-cosine, cosine.*did you mean 'cosine'"):
        schedules.annealing("cosin", 0, 10)


def test_bad_times_are_refused() -> None:
    with pytest.raises(ValueError, match="horizon is 0"):
        schedules.annealing("linear", 0, 0)
    with pytest.raises(ValueError, match="progress is NaN"):
        schedules.annealing("constant", math.nan, 10)
    with pytest.raises(ValueError, match="epoch is NaN"):
        schedules.exponential(math.nan, 1.0)
    with pytest.raises(ValueError, match=r"beta is -1\.0"):
        schedules.exponential(1, -1.0)
    with pytest.raises(ValueError, match="epochs is 0"):
        schedules.sigmoid_ramp(0, 0, 0.9)


def test_cubic_ramp_of_gmp() -> None:
    assert schedules.cubic(0.0, 0.0, 0.8) == 0.0
    assert schedules.cubic(0.5, 0.0, 0.8) == pytest.approx(0.7)  # .8 - .8/8
    assert schedules.cubic(0.5, 0.3, 0.9) == pytest.approx(0.825)  # .9 - .6/8
    assert schedules.cubic(1.0, 0.3, 0.9) == 0.9
    assert schedules.cubic(7.0, 0.3, 0.9) == 0.9


@given(start=st.floats(0, 0.9), progress=st.tuples(PROGRESS, PROGRESS))
def test_cubic_ramp_never_falls(start: float, progress: tuple[float, float]) -> None:
    early, late = sorted(progress)
    assert schedules.cubic(early, start, 0.95) <= schedules.cubic(late, start, 0.95) <= 0.95


def test_sigmoid_ramp_of_optg() -> None:
    assert schedules.sigmoid_ramp(50, 100, 0.9) == pytest.approx(0.45)
    assert schedules.sigmoid_ramp(52, 100, 0.9) == pytest.approx(0.9 / (1 + math.exp(-2)))
    assert schedules.sigmoid_ramp(52, 100, 0.9, beta=0.5) == pytest.approx(0.9 / (1 + math.exp(-1)))
    assert schedules.sigmoid_ramp(0, 100, 0.9, beta=1000.0) == 0.0
    assert schedules.sigmoid_ramp(100, 100, 0.9, beta=1000.0) == 0.9


def test_cosine_fraction_of_rigl() -> None:
    assert schedules.cosine_fraction(0.0, 0.3) == 0.3
    assert schedules.cosine_fraction(1 / 3, 0.3) == pytest.approx(0.225)  # .15 (1 + cos 60 deg)
    assert schedules.cosine_fraction(0.5, 0.3) == pytest.approx(0.15)
    assert schedules.cosine_fraction(1.0, 0.3) == 0.0
