"""Finds convolution - batch norm - ReLU (- add) chains in a module with torch.fx, and rewrites them to fused steps."""

from __future__ import annotations

import operator
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from autosparse.common.graphs import ADDS, RELUS, calls
from autosparse.compute import fused_layers
from autosparse.compute.formats import is_channels_last, may_be_viewed
from autosparse.compute.image_order import lie_images_last
from autosparse.compute.overrides import SPARSE, owner_of
from autosparse.compute.plain_modules import activation_of, computes_as
from autosparse.compute.tracing import IN_PLACE, Trace, Traces, has_hooks, is_container, sole_input
from autosparse.compute.writes import may_be_written

ADDS_IN_PLACE: tuple[Any, ...] = (IN_PLACE["iadd"], "add_")


def fuses_conv(module: nn.Module) -> bool:
    """A Conv2d with torch's own forward, or with the sparse one in its place."""
    return (
        isinstance(module, nn.Conv2d)
        and computes_as(module, nn.Conv2d)
        and owner_of(module) in (None, SPARSE)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and not has_hooks(module)
        and all(each.dtype is torch.float32 and each.device.type == "cpu" for each in module.parameters())
    )


def fuses_norm(module: nn.Module) -> bool:
    """A BatchNorm2d in training, as torch computes it, perhaps with an activation of its own."""
    return (
        isinstance(module, nn.BatchNorm2d)
        and (computes_as(module, nn.BatchNorm2d) or activation_of(module) is not None)
        and owner_of(module) is None
        and module.training
        and not has_hooks(module)
        and not parametrize.is_parametrized(module)
        and all(_is_plain(each) for each in (*module.parameters(), module.running_mean, module.running_var))
    )


def is_relu_module(module: nn.Module) -> bool:
    return computes_as(module, nn.ReLU) and owner_of(module) is None and not has_hooks(module)


def _is_plain(tensor: Tensor | None) -> bool:
    return tensor is None or (tensor.dtype is torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous())


def fused_convolutions(root: nn.Module, traces: Traces, refused: Collection[nn.Module] = ()) -> dict[nn.Module, bool]:
    """The convolutions that fused steps would take in, with whether they would compute with images last.

    Where a module cannot be traced, those of its parts.
    """
    if not is_container(root):
        return {}
    graph = None if type(root).forward is nn.Module.forward else traces.of(root).graph
    if graph is not None:
        return _Rewriter(root, graph, refused).convolutions()
    return dict(ChainMap(*(fused_convolutions(child, traces, refused) for child in root.children())))


class Fused:
    """A module's forward by fused steps, called with the module first, and the batch norms that it fuses."""

    def __init__(self, graph: fx.Graph, norms: Sequence[nn.Module]) -> None:
        self._code, self.norms = graph.python_code("self"), tuple(norms)
        self.function = self.with_steps({})

    def with_steps(self, steps: Mapping[Any, Callable[..., Any]]) -> Callable[..., Any]:
        """The same function with other functions in the place of some of its steps."""
        names = {name: steps.get(value, value) if callable(value) else value for name, value in self._code.globals.items()}
        exec(self._code.src, names)
        return names["forward"]  # type: ignore[no-any-return]


def fuse(root: nn.Module, trace: Trace, refused: Collection[nn.Module] = ()) -> Fused | None:
    """The fused forward of a module; None where nothing can be fused. Batch norms that are `refused` stay as they are."""
    if trace.graph is None:
        return None
    rewriter = _Rewriter(root, trace.graph, refused)
    graph = rewriter.rewrite()
    if not rewriter.norms:
        return None
    graph.lint()
    return Fused(graph, rewriter.norms)


class _Rewriter:
    """Copies a graph; values that stay normalised are in `normalised` before their ReLU and in `activated` after it."""

    def __init__(self, root: nn.Module, graph: fx.Graph, refused: Collection[nn.Module] = ()) -> None:
        self.root, self.old, self.new = root, graph, fx.Graph()
        self.alone = _used_once(root, graph) - set(refused)
        self.copies: dict[fx.Node, fx.Node] = {}
        self.normalised: set[fx.Node] = set()
        self.activated: set[fx.Node] = set()
        self.plain: dict[fx.Node, fx.Node] = {}
        self.norms: list[nn.Module] = []
        self.with_images_last: set[nn.Module] = set()
        self.is_contiguous = not any(is_channels_last(each) for each in root.parameters())

    def rewrite(self) -> fx.Graph:
        for node in self.old.nodes:
            if node not in self.copies and not (self._conv_norm(node) or self._relu(node) or self._add(node)):
                self.copies[node] = self.new.node_copy(node, self._plain)
        self.with_images_last = lie_images_last(self.new, self.root)
        return self.new

    def convolutions(self) -> dict[nn.Module, bool]:
        """Those whose batch norm would be fused, with whether they would compute with images last."""
        self.rewrite()
        fused = (self.root.get_submodule(str(node.target)) for node in self.old.nodes if self._waits_for_norm(node))
        return {conv: conv in self.with_images_last for conv in fused}

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _waits_for_norm(self, node: fx.Node) -> bool:
        module, users = self._module(node), list(node.users)
        if module is None or not fuses_conv(module) or len(users) != 1 or sole_input(node) is None:
            return False
        behind = self._module(users[0])
        return behind in self.alone and behind is not None and fuses_norm(behind) and sole_input(users[0]) is not None

    def _conv_norm(self, conv: fx.Node) -> bool:
        """Where the convolution stands: its input may be written into before the batch norm."""
        if not self._waits_for_norm(conv):
            return False
        before, norm = sole_input(conv), next(iter(conv.users))
        assert before is not None
        if norm not in self.copies:
            self._norm(norm, self.new.call_function(fused_layers.conv_norm, (*self._modules(conv, norm), self.copies[before])))
        return True

    def _norm(self, node: fx.Node, value: fx.Node) -> None:
        """What a batch norm gives, and the activation that it may have."""
        module = self._module(node)
        assert module is not None
        self.norms.append(module)
        activation = activation_of(module)
        if activation is None or type(activation) is nn.Identity:
            self._keep(node, value)
        elif is_relu_module(activation):
            self._keep(node, self.new.call_function(fused_layers.activated, (value,)), has_relu=True)
        else:
            plain = self.new.call_function(fused_layers.plain, (value,))
            self.copies[node] = self._in_torch_format(node, self.new.call_module(f"{node.target}.act", (plain,)))

    def _modules(self, *nodes: fx.Node) -> list[fx.Node]:
        return [self.new.get_attr(str(each.target)) for each in nodes]

    def _relu(self, node: fx.Node) -> bool:
        before = sole_input(node, allow_keywords=True)
        if before is None or not self._is_relu(node) or not self._ends_in(before):
            return False
        self._keep(node, self.new.call_function(fused_layers.activated, (self.copies[before],)), has_relu=True)
        return True

    def _keep(self, node: fx.Node, copy: fx.Node, has_relu: bool = False) -> None:
        """As a normalised value; as a tensor from the start if one of several users may write what the others read."""
        if len(node.users) > 1 and may_be_written(node, self.root):
            copy = self._in_torch_format(node, self.new.call_function(fused_layers.plain, (copy,)))
        else:
            (self.activated if has_relu else self.normalised).add(node)
        self.copies[node] = copy

    def _add(self, node: fx.Node) -> bool:
        operands = _operands(node)
        if operands is None:
            return False
        first, second = operands
        in_place = node.target in ADDS_IN_PLACE
        if not in_place and not self._ends_in(first):
            first, second = second, first
        if not self._ends_in(first):
            return False
        other = self.copies[second] if self._ends_in(second) else self._plain(second)
        users = list(node.users)
        relu = len(users) == 1 and self._is_relu(users[0])
        joined = users[0] if relu else node
        arguments = self.copies[first], other, in_place, relu
        conv = None if may_be_written(joined, self.root) else self._next_conv(joined)
        if conv is None:
            total = self.new.call_function(fused_layers.joined, arguments)
        else:
            norm = next(iter(conv.users))
            both = self.new.call_function(fused_layers.joined_conv_norm, (*arguments, *self._modules(conv, norm)))
            total = self.new.call_function(operator.getitem, (both, 0))
            self._norm(norm, self.new.call_function(operator.getitem, (both, 1)))
        self.copies[node] = self.copies[joined] = self._in_torch_format(joined, total)
        return True

    def _next_conv(self, node: fx.Node) -> fx.Node | None:
        """A convolution to fuse with the end of a block: one without stride if there is a choice, its gradient is wider."""
        return min(filter(self._waits_for_norm, node.users), key=self._stride, default=None)

    def _stride(self, node: fx.Node) -> int:
        module = self._module(node)
        assert isinstance(module, nn.Conv2d)
        return max(module.stride)

    def _ends_in(self, node: fx.Node) -> bool:
        """Whether this is a normalised value without ReLU that only one node uses."""
        return node in self.normalised and len(node.users) == 1

    def _is_relu(self, node: fx.Node) -> bool:
        if sole_input(node, allow_keywords=True) is None:
            return False
        module = self._module(node)
        return calls(node, RELUS) if module is None else is_relu_module(module)

    def _plain(self, node: fx.Node) -> fx.Node:
        if node not in self.normalised and node not in self.activated:
            return self.copies[node]
        if node not in self.plain:
            plain = self.new.call_function(fused_layers.plain, (self.copies[node],))
            self.plain[node] = self._in_torch_format(node, plain)
        return self.plain[node]

    def _in_torch_format(self, node: fx.Node, tensor: fx.Node) -> fx.Node:
        is_free = not self.is_contiguous or not may_be_viewed(node, self.root)
        return tensor if is_free else self.new.call_method("contiguous", (tensor,))


def _used_once(root: nn.Module, graph: fx.Graph) -> set[nn.Module]:
    """Modules that one node calls and nothing else reaches: neither reads of their tensors nor modules that hold them too."""
    called = [root.get_submodule(str(node.target)) for node in graph.find_nodes(op="call_module")]
    reached = [inner for module in called for inner in module.modules() if inner is not module]
    read = [root.get_submodule(str(node.target).rpartition(".")[0]) for node in graph.find_nodes(op="get_attr")]
    times = Counter(called + reached)
    return {module for module in called if times[module] == 1} - set(read)


def _operands(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The two different values that this node adds, if that is what it does."""
    if not calls(node, (*ADDS, *ADDS_IN_PLACE)) or len(node.args) != 2 or node.kwargs:
        return None
    first, second = node.args
    return (first, second) if isinstance(first, fx.Node) and isinstance(second, fx.Node) and first is not second else None
