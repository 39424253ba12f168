"""What a whole run says it gained."""

from __future__ import annotations

import pytest

from autosparse.common.words import gain_words
from autosparse.training.gain import gain_of_run

LINES = [
    {"epoch": 1, "step": 10, "step_ms": 100.0, "dense_step_ms": 90.0},
    {"epoch": 2, "step": 30, "step_ms": 50.0, "dense_step_ms": 100.0},
    {"epoch": 3, "step": 40},
]


def test_the_estimate_replaces_the_steps_of_every_epoch() -> None:
    gain = gain_of_run(10.0, LINES, None)
    assert gain is not None
    assert gain["dense_seconds"] == pytest.approx(10 - 0.1 + 1.0)
    assert gain["ratio"] == pytest.approx(1.09)
    assert gain["dense"] == "estimated"
    assert "10 s, a dense run of as many steps 11 s (estimated" in gain_words(gain)


def test_a_dense_run_beside_it_is_measured_and_losses_are_told() -> None:
    gain = gain_of_run(10.0, LINES, 5.0)
    assert gain == {"seconds": 10.0, "dense_seconds": 5.0, "ratio": 0.5, "dense": "measured"}
    assert gain_words(gain) == "10 s, a dense run of as many steps 5.0 s (trained beside it): sparse was slower"


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert gain_of_run(10.0, [{"epoch": 1, "step": 3}], None) is None
