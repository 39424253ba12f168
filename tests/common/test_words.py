"""Sentences and numbers that people read."""

from __future__ import annotations

import pytest

from autosparse.common.words import counted, did_you_mean, duration, require


def test_a_close_word_is_suggested_and_a_far_one_is_not() -> None:
    assert did_you_mean("epoch", ["epochs", "lr"]) == "; did you mean 'epochs'?"
    assert did_you_mean("xyz", ["epochs"]) == ""
    assert did_you_mean("xyz", ["epochs"], otherwise=".") == "."


def test_several_close_words_are_joined() -> None:
    assert did_you_mean("resnet", ["resnet20", "resnet32"]) == "; did you mean 'resnet32' or 'resnet20'?"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (3.21, "3.2 s"), (9.96, "10 s"), (40, "40 s"), (99.6, "2 min"), (301, "5 min"), (7500, "2 h 05 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 epochs"), (1, "1 epoch"), (12, "12 epochs")])
def test_one_of_a_thing_is_no_plural(number: int, text: str) -> None:
    assert counted(number, "epoch") == text


def test_require_says_what_was_given_and_allowed() -> None:
    require(True, "ramp", 0.5, "(0, 1]")
    with pytest.raises(ValueError, match=r"ramp is 2; allowed: \(0, 1\]"):
        require(False, "ramp", 2, "(0, 1]")
