"""A model as a graph of torch operations (torch.fx), or the reason why it cannot be one."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from autosparse.common.graphs import ADDS, calls

Examples = tuple[object, ...]


class CannotCaptureError(RuntimeError):
    """The model's Python code depends on its data in a way that a graph cannot hold."""


def capture(model: nn.Module, examples: Examples) -> fx.GraphModule:
    """The graph of model(*examples) with the shape of every value; the model itself is left as it is."""
    try:
        traced = fx.GraphModule(model, fx.Tracer().trace(model))
    except Exception as error:  # whatever the model's own code raises on a stand-in for a tensor
        raise CannotCaptureError(_one_line(error)) from error
    return with_shapes(traced, examples)


def with_shapes(traced: fx.GraphModule, examples: Examples) -> fx.GraphModule:
    """Run the graph once so that every node knows the shape of its value."""
    try:
        with torch.no_grad():
            ShapeProp(traced).propagate(*examples)
    except Exception as error:
        raise CannotCaptureError(_one_line(error)) from error
    return traced


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """The shape of a node's float32 tensor; None for anything else."""
    meta: Any = node.meta.get("tensor_meta")
    return tuple(meta.shape) if getattr(meta, "dtype", None) == torch.float32 else None


def module_of(node: fx.Node, graph: fx.GraphModule) -> nn.Module | None:
    """The module that a node calls."""
    return graph.get_submodule(str(node.target)) if node.op == "call_module" else None


def is_sum(node: fx.Node) -> bool:
    """Whether a node adds two things, in place or not."""
    return calls(node, ADDS | {operator.iadd}) and len(node.args) == 2 and not node.kwargs


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
