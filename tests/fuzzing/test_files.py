"""Damaged files of every kind are taken or refused in our own words; `make chaos` tries thousands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .checks import fuzz
from .files import targets

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "15"))
NAMES = (
    "recipe digits", "recipe pictures", "recipe rounds", "recipe sentences", "recipe short", "a table",
    "a run's recipe", "a run's run.json", "a run's metrics", "a run's result", "a run's weights", "a dense run's result",
    "a stopped run's metrics", "a checkpoint", "a sparse file", "an int8 file", "a hub folder's config",
    "a hub folder's weights",
    "a prepared model's description", "a prepared model's weights", "a prepared int8 model's description",
    "a prepared int8 model's weights", "reference losses", "measured times",
    "a tokenizer", "idx images",
)  # fmt: skip


def test_every_target_is_named(tmp_path: Path) -> None:
    assert tuple(target.name for target in targets(tmp_path)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    target = next(target for target in targets(tmp_path) if target.name == name)
    fuzz(target, tmp_path / "folder", EXAMPLES)
