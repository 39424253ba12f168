"""The learning rate over time, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosparse.recipes.recipe import ScheduleBlock
from autosparse.training.rates import all_rates, learning_rate


def test_cosine_by_epoch_with_warm_up_is_the_papers() -> None:
    block = ScheduleBlock(name="cosine", warmup_epochs=5, by="epoch")
    rates = [learning_rate(block, 0.256, epoch * 10, 10, 100) for epoch in range(100)]
    assert rates[0] == pytest.approx(0.256 / 5)
    assert rates[4] == rates[5] == 0.256
    assert rates[52] == pytest.approx(0.256 * 0.5 * (1 + math.cos(math.pi * 47 / 95)))
    # all steps of an epoch have one rate
    assert learning_rate(block, 0.256, 529, 10, 100) == rates[52]


def test_cosine_by_step() -> None:
    block = ScheduleBlock(name="cosine", warmup_steps=2)
    assert all_rates(block, 1.0, 3, 2) == pytest.approx(
        [0.5, 1.0, 1.0, 0.5 * (1 + math.sqrt(0.5)), 0.5, 0.5 * (1 - math.sqrt(0.5))]
    )


def test_inverse_square_root_peaks_after_warm_up() -> None:
    block = ScheduleBlock(name="inverse-sqrt", warmup_steps=4)
    rates = [learning_rate(block, 0.8, step, 10, 10) for step in range(16)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[15] == pytest.approx(0.8 * math.sqrt(4 / 16))


def test_steps_and_constant() -> None:
    block = ScheduleBlock(name="steps", milestones=(2, 4), gamma=0.1)
    assert [round(learning_rate(block, 1.0, 5 * epoch, 5, 6), 4) for epoch in range(6)] == [1, 1, 0.1, 0.1, 0.01, 0.01]
    assert all_rates(ScheduleBlock(name="constant"), 0.3, 2, 2) == [0.3] * 4


@given(
    name=st.sampled_from(["cosine", "inverse-sqrt", "constant"]),
    by=st.sampled_from(["step", "epoch"]),
    steps=st.integers(1, 20),
    epochs=st.integers(1, 20),
    share=st.floats(0.01, 1.0),
)
def test_a_rate_is_never_negative_nor_above_its_peak(name: str, by: str, steps: int, epochs: int, share: float) -> None:
    block = ScheduleBlock(name=name, by=by, warmup_epochs=share * epochs)  # type: ignore[arg-type]
    rates = all_rates(block, 0.5, steps, epochs)
    assert len(rates) == steps * epochs
    assert all(0 <= rate <= 0.5 + 1e-12 for rate in rates)
