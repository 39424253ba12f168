"""Every registered method has a row, a page and a line in the table of the docs, and does something no other one does."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch
from torch import Tensor

import autosparse
from autosparse.methods import DNW, METHODS, Method

from .running import begin
from .settings import ROWS, TOTAL

NAMES = autosparse.list_methods()
DOCS = Path(__file__).parents[2] / "docs" / "methods"


def test_every_method_has_a_row() -> None:
    assert sorted(ROWS) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_a_page(name: str) -> None:
    """Its fields are on it, or on the page of the registered method that it builds on."""
    page = (DOCS / f"{name}.md").read_text()
    assert page.startswith("# ")
    bases = [other for other, each in METHODS.items() if each in METHODS[name].__mro__[1:]]
    pages = page + "".join((DOCS / f"{base}.md").read_text() for base in bases if f"({base}.md)" in page)
    assert [field.name for field in dataclasses.fields(METHODS[name]) if f"`{field.name}" not in pages] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_docs_table_lists_it(name: str) -> None:
    about = autosparse.methods.describe(name)
    lines = (DOCS / "README.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|") and f"({name}.md)" in unquote(line)]
    assert len(rows) == 1
    assert str(about.year) in rows[0]
    assert about.budget in rows[0]


# ------------------------------------------------------------------------------------------------- no two methods are the same

# What methods share is set alike, the rest is each one's default: only what a method does by itself is left to differ.
ALIKE: dict[str, Any] = {
    "sparsity": 0.75,
    "distribution": "uniform",
    "scope": "layer",
    "dense_first": False,
    "dense_last": False,
    "update_every": 2,
    "update_epochs": 1,
    "rounds": 1,
    "start_sparsity": 0.5,
    "penalty_weight": 1e-3,
}


def alike(cls: type[Method]) -> Method:
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: value for name, value in ALIKE.items() if name in names})


def outcome(name: str, method: Method) -> Tensor:
    """The effective weights after every epoch of a run."""
    run = begin(name, "conv", "sgd", method=method)
    run.score()
    seen = []
    for until in range(TOTAL // 4, TOTAL + 1, TOTAL // 4):
        run.advance(until)
        seen += [value.flatten() for value in run.sp.dense_state_dict().values() if value.is_floating_point()]
    return torch.cat(seen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Renamed(DNW):
    """DNW under another name: what the test below must find."""

    about = dataclasses.replace(DNW.about, name="renamed")


def same(outcomes: dict[str, Tensor]) -> list[tuple[str, str]]:
    names = list(outcomes)
    pairs = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
    return [(one, other) for one, other in pairs if torch.equal(outcomes[one], outcomes[other])]


def test_no_two_methods_differ_only_in_name() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", autosparse.SparsityWarning)
        outcomes = {name: outcome(name, alike(METHODS[name])) for name in NAMES}
        assert same(outcomes) == []
        assert same({**outcomes, "renamed": outcome("dnw", alike(Renamed))}) == [("dnw", "renamed")]
