"""Warnings of the package are errors here: short runs of the table are made to give none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

import autosparse


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", autosparse.SparsityWarning)
        yield
