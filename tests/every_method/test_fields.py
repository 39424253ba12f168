"""Every field of every method changes what a run ends with."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import autosparse
from autosparse.methods import METHODS

from ..latencies import made_up_latencies
from .other_fields import OTHERS
from .running import begin
from .settings import ROWS, TOTAL

NAMES = autosparse.list_methods()
CASES = [(name, field) for name in NAMES for field in OTHERS.get(name, {})]


@pytest.mark.parametrize("name", NAMES)
def test_every_field_has_another_value(name: str) -> None:
    assert sorted(OTHERS[name]) == sorted(field.name for field in dataclasses.fields(METHODS[name]))


@functools.cache
def _end(name: str, changes: tuple[tuple[str, Any], ...]) -> Tensor:
    """The weights that a short run ends with."""
    method = autosparse.method(name, **{**ROWS[name].fields, **dict(changes)})
    with warnings.catch_warnings(), made_up_latencies():
        warnings.simplefilter("ignore", autosparse.SparsityWarning)  # some of the values are none that one should use
        run = begin(name, "mlp", "sgd", method=method)
        run.score()
        run.advance(TOTAL)
    return torch.cat([value.flatten() for value in run.sp.dense_state_dict().values()])


@pytest.mark.parametrize(("name", "field"), CASES)
def test_every_field_changes_the_run(name: str, field: str) -> None:
    other = OTHERS[name][field]
    given = tuple(other.given.items())
    assert not torch.equal(_end(name, given), _end(name, (*given, (field, other.value))))
