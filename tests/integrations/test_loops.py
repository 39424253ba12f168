"""How a framework's run is divided, by hand."""

from __future__ import annotations

import pytest

from autosparse.integrations.loops import divide


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({"batches": 10, "accumulation": 1, "epochs": 3}, (3, 10)),
        ({"batches": 10, "accumulation": 4, "epochs": 2}, (2, 3)),  # 4 + 4 + 2 batches
        ({"batches": 3, "accumulation": 8, "epochs": 5}, (5, 1)),
        ({"batches": 10, "accumulation": 1, "epochs": 2.5}, (3, 9)),  # 25 steps: 9 + 9 + 7
        ({"batches": 1000, "accumulation": 1, "epochs": 3, "max_steps": 100}, (1, 100)),
        ({"batches": 1000, "accumulation": 1, "epochs": 3, "max_steps": 1100}, (2, 550)),
        ({"batches": 100, "accumulation": 2, "epochs": 1, "parts": 10}, (10, 5)),
        ({"batches": 6, "accumulation": 1, "epochs": 1, "parts": 4}, (3, 2)),
        ({"batches": 2, "accumulation": 1, "epochs": 1, "parts": 9}, (2, 1)),
        ({"batches": None, "accumulation": 4, "epochs": 3, "max_steps": 60, "parts": 3}, (3, 20)),
    ],
)
def test_a_run_is_divided(run: dict[str, float], expected: tuple[int, int]) -> None:
    assert divide(**run) == expected


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"batches": None, "accumulation": 1, "epochs": 3, "max_steps": 60}, "say into how many epochs"),
        ({"batches": None, "accumulation": 1, "epochs": 3, "parts": 2}, "set max_steps"),
        ({"batches": 5, "accumulation": 1, "epochs": 3, "parts": 0}, "epochs = 0; it must be a whole number of at least 1"),
    ],
)
def test_a_run_without_an_end_is_refused(run: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        divide(**run)
