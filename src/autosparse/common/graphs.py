"""What nodes of a torch.fx graph call, for fusing in training and in serving."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

RELUS: frozenset[Any] = frozenset({F.relu, torch.relu, torch.relu_, "relu", "relu_"})
# `x += y` is missing here: what it becomes in a graph depends on the tracer.
ADDS: frozenset[Any] = frozenset({operator.add, torch.add, "add", "add_"})


def calls(node: fx.Node, targets: Collection[Any]) -> bool:
    """Whether a node calls one of these functions or methods; a submodule named like a method is neither."""
    return node.op in ("call_function", "call_method") and node.target in targets
