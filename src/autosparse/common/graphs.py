"""What nodes of a torch.fx graph call, and the values that they have, for fusing in training and in serving."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

RELUS: frozenset[Any] = frozenset({F.relu, torch.relu, torch.relu_, "relu", "relu_"})
# `x += y` is missing here: what it becomes in a graph depends on the tracer.
ADDS: frozenset[Any] = frozenset({operator.add, torch.add, "add", "add_"})


def calls(node: fx.Node, targets: Collection[Any]) -> bool:
    """Whether a node calls one of these functions or methods; a submodule named like a method is neither."""
    return node.op in ("call_function", "call_method") and node.target in targets


def visit_values(graph: fx.GraphModule, tensors: Iterable[Tensor], visit: Callable[[fx.Node, Any], None]) -> None:
    """Run the graph on copies of these tensors, and visit every node with its value."""

    class Visitor(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            visit(n, result)
            return result

    with torch.no_grad():
        Visitor(graph).run(*(tensor.clone() for tensor in tensors))
