"""Comparing nested states bit by bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autosparse.sparsifier.report import Report


def differences(left: Any, right: Any, where: str = "") -> list[str]:
    """Where two nested states differ by a single bit."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return [] if left.dtype == right.dtype and torch.equal(left, right) else [where]
    if isinstance(left, dict) and isinstance(right, dict):
        if left.keys() != right.keys():
            return [f"{where} keys {left.keys() ^ right.keys()}"]
        return [found for key in left for found in differences(left[key], right[key], f"{where}/{key}")]
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        if len(left) != len(right):
            return [f"{where} lengths {len(left)}, {len(right)}"]
        pairs = enumerate(zip(left, right, strict=True))
        return [found for index, (a, b) in pairs for found in differences(a, b, f"{where}/{index}")]
    return [] if left == right else [f"{where}: {left!r} and {right!r}"]


def untimed(report: Report) -> list[str]:
    """The lines of a report without the one that tells how long a step takes."""
    return [line for line in str(report).splitlines() if " ms per step" not in line]
