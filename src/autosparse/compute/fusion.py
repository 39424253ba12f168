"""Finds convolution - batch norm - ReLU (- add) chains in a module with torch.fx, and rewrites them to fused steps."""

from __future__ import annotations

import inspect
import operator
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.nn.utils import parametrize

from autosparse.compute import normalised

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip
RELUS: tuple[Any, ...] = (F.relu, torch.relu, torch.relu_)
ADDS: tuple[Any, ...] = (operator.add, operator.iadd, torch.add)


class Untraceable(Exception):
    """This module's forward cannot be replaced by a graph; its parts perhaps can."""


def has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name, None) for name in HOOKS)


def any_global_hooks() -> bool:
    return any(getattr(module_hooks, name, None) for name in GLOBAL_HOOKS)


def fuses_conv(module: nn.Module) -> bool:
    """A Conv2d with torch's own forward, or with the sparse one in its place."""
    return (
        type(module).forward is nn.Conv2d.forward
        and isinstance(module, nn.Conv2d)
        and ("forward" not in vars(module) or "sparse_route" in vars(module))
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and not has_hooks(module)
    )


def fuses_norm(module: nn.Module) -> bool:
    """A BatchNorm2d in training, as torch computes it."""
    return (
        type(module).forward is nn.BatchNorm2d.forward
        and isinstance(module, nn.BatchNorm2d)
        and "forward" not in vars(module)
        and module.training
        and not has_hooks(module)
        and not parametrize.is_parametrized(module)
        and all(_is_plain(each) for each in (*module.parameters(), module.running_mean, module.running_var))
    )


def _is_plain(tensor: Tensor | None) -> bool:
    return tensor is None or (tensor.dtype is torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous())


class _Tracer(fx.Tracer):
    """Goes into containers only: a module without children stays a call, whatever it does."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own_forward = "forward" in vars(m)
        return (
            own_forward or has_hooks(m) or next(m.children(), None) is None or super().is_leaf_module(m, module_qualified_name)
        )

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and all(a is not b for b in self.root.buffers()):
            raise Untraceable("a tensor made during the forward pass would become a constant")
        return super().create_arg(a)


def trace(root: nn.Module) -> fx.Graph:
    """The graph of a module's own forward; refuses whatever one pass with stand-ins for tensors could get wrong."""
    parameters = inspect.signature(type(root).forward).parameters.values()
    if any(each.kind is not each.POSITIONAL_OR_KEYWORD or each.default is not each.empty for each in parameters):
        raise Untraceable("forward has optional arguments")
    before = _random_states()
    try:
        graph = _Tracer().trace(root)
    except Exception as error:  # whatever a user's forward does with a stand-in
        raise Untraceable(str(error)) from error
    if before != _random_states():
        raise Untraceable("forward draws random numbers")
    return graph


def _random_states() -> tuple[bytes, ...]:
    kept = np.random.get_state(legacy=True)
    return bytes(torch.get_rng_state().tolist()), repr(random.getstate()).encode(), repr((kept[1].tobytes(), kept[2:])).encode()  # type: ignore[index]


def fused_convolutions(root: nn.Module) -> set[nn.Module]:
    """The convolutions that fused steps would take in; where a module cannot be traced, those of its parts."""
    if not root._modules:
        return set()
    try:
        if type(root).forward is nn.Module.forward:  # a list or a dict of modules
            raise Untraceable("it has no forward")
        return _Rewriter(root, trace(root)).convolutions()
    except Untraceable:
        return set().union(*(fused_convolutions(child) for child in root.children()))


def fuse(root: nn.Module) -> tuple[Callable[..., Any], int]:
    """A function that computes root.forward with fused steps, called with root first; how many batch norms it fused."""
    rewriter = _Rewriter(root, trace(root))
    graph = rewriter.rewrite()
    if not rewriter.fused:
        raise Untraceable("there is nothing to fuse")
    graph.lint()
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(code.src, names)
    return names["forward"], rewriter.fused


class _Rewriter:
    """Copies a graph; nodes whose value stays normalised are in `kept`, as yet without and with their ReLU."""

    def __init__(self, root: nn.Module, graph: fx.Graph) -> None:
        self.root, self.old, self.new = root, graph, fx.Graph()
        self.made: dict[fx.Node, fx.Node] = {}
        self.normalised: set[fx.Node] = set()
        self.activated: set[fx.Node] = set()
        self.plain: dict[fx.Node, fx.Node] = {}
        self.fused = 0

    def rewrite(self) -> fx.Graph:
        for node in self.old.nodes:
            if node in self.made or self._waits_for_norm(node):
                continue
            if not (self._norm(node) or self._relu(node) or self._add(node)):
                self.made[node] = self.new.node_copy(node, self._plain)
        return self.new

    def convolutions(self) -> set[nn.Module]:
        """Those whose batch norm would be fused."""
        return {self.root.get_submodule(str(node.target)) for node in self.old.nodes if self._waits_for_norm(node)}

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _waits_for_norm(self, node: fx.Node) -> bool:
        module, users = self._module(node), list(node.users)
        if module is None or not fuses_conv(module) or len(users) != 1 or _input(node) is None:
            return False
        behind = self._module(users[0])
        return behind is not None and fuses_norm(behind) and _input(users[0]) is not None

    def _norm(self, node: fx.Node) -> bool:
        conv = _input(node)
        if conv is None or not self._waits_for_norm(conv):
            return False
        before = _input(conv)
        assert before is not None
        x = self.made[before] if before in self.normalised | self.activated else self._plain(before)
        modules = [self.new.get_attr(str(each.target)) for each in (conv, node)]
        self.made[node] = self.new.call_function(normalised.conv_norm, (*modules, x))
        self.normalised.add(node)
        self.fused += 1
        return True

    def _relu(self, node: fx.Node) -> bool:
        before = _input(node, allow_keywords=True)
        if before is None or not self._is_relu(node) or not self._ends_in(before):
            return False
        self.made[node] = self.new.call_function(normalised.activated, (self.made[before],))
        self.activated.add(node)
        return True

    def _add(self, node: fx.Node) -> bool:
        operands = _operands(node)
        if operands is None:
            return False
        first, second = operands
        if not self._ends_in(first):
            first, second = second, first
        if not self._ends_in(first):
            return False
        other = self.made[second] if self._ends_in(second) else self._plain(second)
        users = list(node.users)
        relu = len(users) == 1 and self._is_relu(users[0])
        joined = users[0] if relu else node
        conv = self._next_conv(joined)
        if conv is None:
            made = self.new.call_function(normalised.joined, (self.made[first], other, relu))
        else:
            norm = next(iter(conv.users))
            modules = [self.new.get_attr(str(each.target)) for each in (conv, norm)]
            both = self.new.call_function(normalised.joined_conv_norm, (self.made[first], other, relu, *modules))
            made = self.new.call_function(operator.getitem, (both, 0))
            self.made[norm] = self.new.call_function(operator.getitem, (both, 1))
            self.normalised.add(norm)
            self.fused += 1
        self.made[node] = self.made[joined] = made
        return True

    def _next_conv(self, node: fx.Node) -> fx.Node | None:
        """A convolution to fuse with the end of a block: one without stride if there is a choice, its gradient is wider."""
        found = [each for each in node.users if self._waits_for_norm(each)]
        return min(found, key=self._stride, default=None)

    def _stride(self, node: fx.Node) -> int:
        module = self._module(node)
        assert isinstance(module, nn.Conv2d)
        return max(module.stride)

    def _ends_in(self, node: fx.Node) -> bool:
        """Whether this is a normalised value without ReLU that only one node uses."""
        return node in self.normalised and len(node.users) == 1

    def _is_relu(self, node: fx.Node) -> bool:
        if _input(node, allow_keywords=True) is None:
            return False
        module = self._module(node)
        if module is not None:
            return type(module).forward is nn.ReLU.forward and "forward" not in vars(module) and not has_hooks(module)
        called = node.op == "call_function" and node.target in RELUS
        return called or (node.op == "call_method" and node.target in ("relu", "relu_"))

    def _plain(self, node: fx.Node) -> fx.Node:
        if node not in self.normalised and node not in self.activated:
            return self.made[node]
        if node not in self.plain:
            self.plain[node] = self.new.call_function(normalised.plain, (self.made[node],))
        return self.plain[node]


def _input(node: fx.Node, allow_keywords: bool = False) -> fx.Node | None:
    """The one node that this node takes, if it takes nothing else."""
    first = node.args[0] if len(node.args) == 1 and (allow_keywords or not node.kwargs) else None
    return first if isinstance(first, fx.Node) else None


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The two different values that this node adds, if that is what it does."""
    by_method = node.op == "call_method" and node.target in ("add", "add_")
    if not by_method and not (node.op == "call_function" and node.target in ADDS):
        return None
    if len(node.args) != 2 or node.kwargs:
        return None
    first, second = node.args
    return (first, second) if isinstance(first, fx.Node) and isinstance(second, fx.Node) and first is not second else None
