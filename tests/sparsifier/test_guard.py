import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosparse.sparsifier.guard import Event, Guard, GuardState, SparsityRunaway, densities_to_restore


def guard(**fields: Any) -> GuardState:
    return GuardState(Guard(**fields))


def kinds(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.layer, event.kind) for event in events]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "panic"),
        ("floor", -0.1),
        ("floor", 1.0),
        ("escape", 1.0),
        ("escape", -1.0),
        ("escape", math.nan),
        ("growth", 1.0),
        ("growth", -0.1),
        ("every", 0),
    ],
)
def test_bad_values_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} is .*allowed: "):
        Guard(**{field: value})


def test_interval() -> None:
    assert Guard().interval(800) == 10
    assert Guard().interval(10) == 1
    assert Guard().interval(10**6) == 100
    assert Guard(every=7).interval(800) == 7


def test_floor() -> None:
    state = guard()
    assert state.check(0, ["a", "b"], [0.7, 0.01], [1.0, 1.0]) == []
    assert state.check(10, ["a", "b"], [0.65, 0.006], [1.0, 1.0]) == [Event(10, "b", "floor", 0.006, 0.01, "held")]


def test_floor_forgives_float32() -> None:
    assert guard().check(0, ["a"], [0.009999999776], [1.0]) == []


def test_floor_of_zero_is_off() -> None:
    assert guard(floor=0.0).check(0, ["a"], [0.0], [1.0]) == []


def test_growth_needs_a_low_density_and_a_fall() -> None:
    state = guard()
    state.check(0, ["a", "b", "c"], [1.0, 0.4, 0.4], [1.0] * 3)
    events = state.check(10, ["a", "b", "c"], [0.5, 0.21, 0.19], [1.0] * 3)
    assert events == [Event(10, "c", "growth", 0.19, 0.2, "held")]


def test_growth_above_half_density_is_fine() -> None:
    state = guard(growth=0.9)
    state.check(0, ["a"], [0.9], [1.0])
    assert state.check(10, ["a"], [0.55], [1.0]) == []
    assert kinds(state.check(20, ["a"], [0.45], [1.0])) == [("a", "growth")]


def test_a_held_fall_is_measured_from_where_it_was_held() -> None:
    held, warned = guard(), guard(policy="warn")
    for state in (held, warned):
        state.check(0, ["a"], [0.4], [1.0])
        state.check(10, ["a"], [0.05], [1.0])
    # Held at .2, a density of .06 is another fall; a warned layer went on from .05.
    assert held.check(20, ["a"], [0.06], [1.0])[0].limit == pytest.approx(0.1)
    assert warned.check(20, ["a"], [0.06], [1.0]) == []


def test_growth_of_zero_is_off() -> None:
    state = guard(growth=0.0)
    state.check(0, ["a"], [0.4], [1.0])
    assert state.check(10, ["a"], [0.02], [1.0]) == []


def test_density_to_restore_is_the_larger_limit() -> None:
    state = guard()
    state.check(0, ["a", "b", "c"], [0.4, 0.012, 0.5], [1.0, 1.0, 1.0])
    events = state.check(10, ["a", "b", "c"], [0.0, 0.004, 0.5], [1.0, 1.0, 99.0])
    assert kinds(events) == [("a", "floor"), ("a", "growth"), ("b", "floor"), ("b", "growth"), ("c", "escape")]
    assert densities_to_restore(events) == {"a": pytest.approx(0.2), "b": 0.01}


def test_nothing_is_restored_under_warn() -> None:
    events = guard(policy="warn").check(0, ["a"], [0.0], [1.0])
    assert [event.action for event in events] == ["warned"]
    assert densities_to_restore(events) == {}


def test_escape_is_relative_and_absolute() -> None:
    state = guard()
    names = ["tiny", "plain"]
    state.check(0, names, [0.5, 0.5], [0.05, 0.8])
    assert state.check(10, names, [0.5, 0.5], [4.9, 7.9]) == []  # 98 times the start, but small; under 10 times
    events = state.check(20, names, [0.5, 0.5], [5.1, 8.1])
    assert [(event.layer, event.value, event.limit) for event in events] == [("tiny", 5.1, 5.0), ("plain", 8.1, 8.0)]


def test_escaped_layers_stay_until_half_the_limit() -> None:
    state = guard()
    escaped = []
    for step, size in enumerate([0.5, 5.1, 4.0, 2.6, 2.4, 4.0]):
        state.check(step, ["a"], [0.5], [size])
        escaped.append("a" in state.escaped)
    assert escaped == [False, True, True, True, False, False]


def test_only_hold_marks_layers_as_escaped() -> None:
    state = guard(policy="warn")
    state.check(0, ["a"], [0.5], [0.5])
    assert kinds(state.check(1, ["a"], [0.5], [50.0])) == [("a", "escape")]
    assert state.escaped == set()


def test_escape_factor_counts_and_zero_is_off() -> None:
    for escape, expected in ((0.0, 0), (10.0, 0), (4.0, 1)):
        state = guard(escape=escape)
        state.check(0, ["a"], [0.5], [1.0])
        assert len(state.check(1, ["a"], [0.5], [6.0])) == expected
    off = guard(escape=0.0)
    off.check(0, ["a"], [0.5], [1.0])
    assert off.check(1, ["a"], [0.5], [1e9]) == []


def test_rows_of_the_same_event_are_merged() -> None:
    state = guard(growth=0.0)
    returned = [state.check(step, ["a"], [density], [1.0]) for step, density in [(0, 0.002), (10, 0.003), (20, 0.5)]]
    returned.append(state.check(30, ["a"], [0.004], [1.0]))
    assert state.events == [
        Event(0, "a", "floor", 0.002, 0.01, "held", count=2, last_step=10),
        Event(30, "a", "floor", 0.004, 0.01, "held", count=1, last_step=30),
    ]
    # What a check returns describes that check, with the length of its row so far.
    assert [[(event.step, event.value, event.count) for event in events] for events in returned] == [
        [(0, 0.002, 1)],
        [(10, 0.003, 2)],
        [],
        [(30, 0.004, 1)],
    ]


def test_stop_raises_with_the_texts_and_keeps_the_events() -> None:
    state = guard(policy="stop")
    with pytest.raises(SparsityRunaway, match=r"step 5: layer 'b'.*below the floor of 1\.000%.*stopped") as caught:
        state.check(5, ["a", "b"], [0.5, 0.0], [1.0, 1.0])
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.events == state.events == [Event(5, "b", "floor", 0.0, 0.01, "stopped")]


def test_texts_say_what_happened_what_was_done_and_what_to_do() -> None:
    floor = str(Event(120, "conv3", "floor", 0.004, 0.01, "held", count=3, last_step=140))
    assert floor == (
        "step 120: layer 'conv3' keeps 0.400% of its weights, below the floor of 1.000%; its threshold was set back to "
        "the floor (3 checks in a row, last at step 140). To avoid it: lower the threshold decay or the target "
        "sparsity, or exclude the layer."
    )
    growth = str(Event(120, "fc", "growth", 0.1, 0.2, "warned"))
    assert "fell to a density of 10.000% between two checks, below 20.000%; nothing was changed." in growth
    escape = str(Event(120, "fc", "escape", 17.25, 5.0, "held"))
    assert "a weight of size 17.25, beyond 5" in escape
    assert "no gradient" in escape


def test_bad_numbers_are_refused_and_remembered_nowhere() -> None:
    state = guard()
    state.check(0, ["a", "b"], [0.4, 0.4], [1.0, 1.0])
    before = state.state_dict()
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="weights of layer 'b' are not finite at step 7"):
            state.check(7, ["a", "b"], [0.0, 0.4], [1.0, bad])
    with pytest.raises(ValueError, match="density of layer 'b' is nan at step 7"):
        state.check(7, ["a", "b"], [0.0, math.nan], [1.0, 1.0])
    with pytest.raises(ValueError, match="2 names, 1 densities and 2 maxima"):
        state.check(7, ["a", "b"], [0.0], [1.0, 1.0])
    assert state.state_dict() == before


CHECKS = st.lists(
    st.tuples(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2), st.lists(st.floats(0.0, 50.0), min_size=2, max_size=2)),
    min_size=2,
    max_size=12,
)


@given(checks=CHECKS, split=st.integers(0, 11))
def test_resume_equals_one_run(checks: list[tuple[list[float], list[float]]], split: int) -> None:
    whole, first, second = guard(), guard(), guard()
    for step, (densities, largest) in enumerate(checks):
        returned = whole.check(step, ["a", "b"], densities, largest)
        if step == split:
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        resumed = second if step >= split else first
        assert resumed.check(step, ["a", "b"], densities, largest) == returned
        assert resumed.escaped == whole.escaped
        assert resumed.events == whole.events


@given(checks=CHECKS)
def test_every_low_layer_is_reported_and_counts_add_up(checks: list[tuple[list[float], list[float]]]) -> None:
    state = guard()
    returned = 0
    for step, (densities, largest) in enumerate(checks):
        events = state.check(step, ["a", "b"], densities, largest)
        returned += len(events)
        low = {name for name, density in zip("ab", densities, strict=True) if density < 0.0099}
        assert low <= {event.layer for event in events if event.kind == "floor"}
        assert all(densities_to_restore(events)[name] >= 0.01 for name in low)
    assert sum(event.count for event in state.events) == returned
