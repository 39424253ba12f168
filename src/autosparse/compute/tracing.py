"""Traces the forward of a module with torch.fx, writes into tensors included, and refuses what a trace could get wrong."""

from __future__ import annotations

import inspect
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.graph import inplace_methods
from torch.fx.proxy import Attribute
from torch.nn.modules import module as module_hooks

from autosparse.compute import overrides
from autosparse.compute.plain_modules import is_norm_with_activation

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip

# A module whose own attributes change from call to call cannot be traced once for all.
MOST_TRACES = 8
SIMPLE = (bool, int, float, str, type(None))


class Untraceable(Exception):
    """This module's forward cannot be replaced by a graph; its parts perhaps can."""


def has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name, None) for name in HOOKS)


def any_global_hooks() -> bool:
    return any(getattr(module_hooks, name, None) for name in GLOBAL_HOOKS)


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    """`a += b` and its like as a function. Of the operator itself fx makes a statement that changes integers too."""
    operation = getattr(operator, name)

    def apply(target: Any, other: Any) -> Any:
        return operation(target, other)

    apply.__name__ = apply.__qualname__ = name
    return apply


IN_PLACE = {name: _in_place(name) for name in inplace_methods if name != "setitem"}


class _StandIn(fx.Proxy):
    """For a tensor while tracing: records writes, which fx takes for arithmetic (`+=`) or forgets (`x.data = y`)."""

    def __getattr__(self, k: str) -> _AttributeStandIn:
        return _AttributeStandIn(self, k)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(Tensor, name):
            raise Untraceable(f"forward sets {name} of a tensor")
        super().__setattr__(name, value)


class _AttributeStandIn(_StandIn, Attribute):
    pass


def _recorded(function: Callable[[Any, Any], Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda target, other: target.tracer.create_proxy("call_function", function, (target, other), {})


for _name, _function in IN_PLACE.items():
    setattr(_StandIn, f"__{_name}__", _recorded(_function))


class _Tracer(fx.Tracer):
    """Goes into containers only: a module without children stays a call, whatever it does."""

    proxy_buffer_attributes = True  # what a forward writes into a buffer belongs to every step

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _StandIn(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if overrides.owner_of(m) is not None or has_hooks(m) or next(m.children(), None) is None or is_norm_with_activation(m):
            return True
        return super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if type(m).__call__ is not nn.Module.__call__:  # what it does around its forward would be done twice
            raise Untraceable(f"{type(m).__name__} has a __call__ of its own")
        return super().call_module(m, forward, args, kwargs)

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
    _drop_identities(root, graph)
    return graph


def _drop_identities(root: nn.Module, graph: fx.Graph) -> None:
    """nn.Identity gives back the very tensor that it was given."""
    for node in graph.find_nodes(op="call_module"):
        module, before = root.get_submodule(node.target), sole_input(node)
        is_plain = type(module) is nn.Identity and overrides.owner_of(module) is None and not has_hooks(module)
        if is_plain and before is not None:
            node.replace_all_uses_with(before)
            graph.erase_node(node)


def _random_states() -> tuple[bytes, ...]:
    kept = np.random.get_state(legacy=True)
    return bytes(torch.get_rng_state().tolist()), repr(random.getstate()).encode(), repr((kept[1].tobytes(), kept[2:])).encode()  # type: ignore[index]


def sole_input(node: fx.Node, allow_keywords: bool = False) -> fx.Node | None:
    """The one node that this node takes, if it takes nothing else."""
    first = node.args[0] if len(node.args) == 1 and (allow_keywords or not node.kwargs) else None
    return first if isinstance(first, fx.Node) else None


class Trace:
    """A module's graph, None if it cannot be traced; it holds as long as what it depends on besides tensors does."""

    def __init__(self, root: nn.Module, attempt: int = 1) -> None:
        modules = list(_modules_inside(root))
        self.attempt, self.graph = attempt, None if attempt > MOST_TRACES else _graph_or_none(root)
        self._hooks = [getattr(module, name) for module in modules for name in HOOKS]
        self._attributes = [(vars(module), name) for module in modules for name in _relevant_attributes(module)]
        self._children = [module._modules for module in modules if module._modules]
        self._state = self._present_state()

    @property
    def has_hooks(self) -> bool:
        return any(self._hooks)

    def holds(self) -> bool:
        """Whether modules, modes, hooks and plain attributes are as they were. Asked at every step: no module is visited."""
        return self.attempt > MOST_TRACES or self._present_state() == self._state

    def _present_state(self) -> list[object]:
        attributes = [values.get(name) for values, name in self._attributes]
        return [list(map(bool, self._hooks)), attributes, [tuple(children.values()) for children in self._children]]


class Traces:
    """The traces of a model and of its parts, for planning and for fusing: each is made once per version of the plan."""

    def __init__(self) -> None:
        self._traces: dict[nn.Module, Trace] = {}

    def of(self, module: nn.Module) -> Trace:
        trace = self._traces.get(module)
        if trace is None or not trace.holds():
            trace = self._traces[module] = Trace(module, 1 if trace is None else trace.attempt + 1)
        return trace

    def renew(self) -> None:
        """Begin a new version: a forward may depend on more than a trace can check."""
        self._traces.clear()


def _graph_or_none(root: nn.Module) -> fx.Graph | None:
    try:
        return trace(root)
    except Untraceable:
        return None


def _relevant_attributes(module: nn.Module) -> list[str]:
    if is_container(module):
        return ["forward", *(name for name, value in vars(module).items() if isinstance(value, SIMPLE))]
    return ["forward", "training", "inplace"]


def is_container(module: nn.Module) -> bool:
    return any(name != "parametrizations" for name in module._modules)


def _modules_inside(root: nn.Module) -> Iterator[nn.Module]:
    """The module and all inside it but those that compute weights."""
    waiting: list[nn.Module | None] = [root]
    visited = set()
    while waiting:
        module = waiting.pop()
        if module is not None and module not in visited:
            visited.add(module)
            yield module
            waiting.extend(child for name, child in module._modules.items() if name != "parametrizations")
