"""Runs as reports read them."""

from __future__ import annotations

from autosparse.recipes.method_block import DENSE
from autosparse.training.folder import Run, block, number

__all__ = ["DENSE", "Run", "block", "number", "read_run"]

read_run = Run.read
