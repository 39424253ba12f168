"""A damaged state of a Sparsifier is taken whole or refused whole."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, seed, settings

import autosparse
from autosparse import Sparsifier

from ..conftest import Loop, small_net
from ..states import differences
from .changes import as_lists, change_values, edits
from .checks import SETTINGS, watched

EXAMPLES = 60


def trained() -> Loop:
    torch.manual_seed(0)
    loop = Loop(small_net(), autosparse.AutoSparse(alpha=0.75, target_sparsity=0.6), epochs=3, steps=3)
    loop.epoch()
    return loop


def take_or_refuse(sp: Sparsifier, state: Any) -> bool:
    """Whether the state was taken; after a refusal everything is as it was."""
    before = copy.deepcopy(sp.state_dict())
    with watched():
        try:
            sp.load_state_dict(state)
        except ValueError:
            assert differences(before, sp.state_dict()) == []
            return False
    return True


def fuzz_states(examples: int, number: int | None = None) -> int:
    """How many of the damaged states were taken."""
    loop, taken = trained(), 0
    good, method = as_lists(loop.sp.state_dict()), loop.sp.method
    loop.sp.load_state_dict(good)

    @settings(max_examples=examples, **SETTINGS)
    @given(edits)
    def check(changes: list[tuple[str, int, int, Any]]) -> None:
        nonlocal taken
        taken += take_or_refuse(loop.sp, change_values(good, changes))
        loop.sp.method = method  # a state that lacks a field is an older version's and brings that version's default
        loop.sp.load_state_dict(good)

    (check if number is None else seed(number)(check))()
    return taken


def test_damaged_states_change_nothing() -> None:
    fuzz_states(EXAMPLES)


@pytest.mark.parametrize("precisions", ["", {"0": "float99"}, {"0": 5}])
def test_damaged_precisions_change_nothing(precisions: object) -> None:
    loop = trained()
    state = loop.sp.state_dict()
    assert not take_or_refuse(loop.sp, {**state, "compute": {**state["compute"], "precisions": precisions}})


@pytest.mark.parametrize("key", ["version", "method", "fields", "layers", "epochs", "steps_per_epoch"])
def test_a_tensor_where_a_plain_value_belongs_is_refused(key: str) -> None:
    sp = trained().sp
    state = sp.state_dict()
    numbers = torch.arange(3)
    state[key] = {**state[key], next(iter(state[key])): [numbers]} if isinstance(state[key], dict) else numbers
    with pytest.raises(ValueError, match=f"its {key} holds a tensor"):
        sp.load_state_dict(state)
