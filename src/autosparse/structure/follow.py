"""Follows the channels of a model through its operators: which slices of which tensors are one channel, and who reads it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, fx

from autosparse.structure.channels import Channels, Ids, Ties, Values
from autosparse.structure.tracing import Traced

Result = Channels | None | list[Channels | None]
Rule = Callable[["Follower", "Operation"], Result]
ChannelRule = Callable[["Follower", "Operation", Channels], Result]
RULES: dict[str, Rule] = {}
VIEWS = frozenset({
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t", "expand", "select", "slice",
    "narrow", "detach", "alias", "movedim",
})  # fmt: skip


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Say how channels go through torch's operators of these names."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def channel_rule(*names: str) -> Callable[[ChannelRule], ChannelRule]:
    """The same by the channels of the first argument; where that has none, the result has none."""

    def enter(function: ChannelRule) -> ChannelRule:
        def apply(follower: Follower, operation: Operation) -> Result:
            channels = follower.channels(operation.node.args[0])
            return None if channels is None else function(follower, operation, channels)

        RULES.update(dict.fromkeys(names, apply))
        return function

    return enter


@dataclass(frozen=True)
class Read:
    """A layer that multiplies channels into new ones; one entry per input of the layer."""

    module: str
    key: str
    dim: int  # of the inputs in the weight
    ids: Ids
    values: Values
    is_read: np.ndarray[Any, np.dtype[np.bool_]]  # some weight of this input is not zero
    padded: bool  # zeros are added around its input: a constant is none at the edge
    bias: str | None
    norm_mean: str | None  # running mean of the batch norm that alone reads the layer's output


@dataclass(frozen=True)
class Units:
    """Channels that code counts in units: groups of a convolution or a norm, heads of attention."""

    kind: str  # "conv", "norm" or "heads"
    module: str
    count: int
    width: int  # channels of all units together
    ids: Ids  # one number per unit


@dataclass(frozen=True)
class Operation:
    """One operator with its arguments by name."""

    node: fx.Node
    name: str
    arguments: Mapping[str, Any]
    module: str

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.node)


def shape_of(node: Any) -> tuple[int, ...]:
    """The shape of the tensor that a node gives; () for anything else."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(int(size) for size in value.shape) if isinstance(value, Tensor) else ()


@dataclass
class Follower:
    """One pass over a graph; `tensors` gives the values of parameters and buffers, empty where only the ties matter."""

    traced: Traced
    ties: Ties
    tensors: Mapping[str, Tensor]
    reads: list[Read] = field(default_factory=list)
    units: list[Units] = field(default_factory=list)
    _env: dict[fx.Node, Result] = field(default_factory=dict)

    def run(self) -> None:
        for place, node in enumerate(self.traced.nodes):
            if node.op == "placeholder":
                self._env[node] = self._parameter(node)
            elif node.op == "call_function":
                self._call(node, self.traced.module_of(place))
            elif node.op == "output":
                for each in node.all_input_nodes:
                    self.pin(each, "it is an output of the model")

    def channels(self, node: Any) -> Channels | None:
        """The channels of a tensor, None where it has none that are followed."""
        found = self._env.get(node) if isinstance(node, fx.Node) else None
        return found if isinstance(found, Channels) else None

    def key(self, node: Any) -> str | None:
        """The name of the parameter or buffer that a node is."""
        return self.traced.keys.get(node) if isinstance(node, fx.Node) else None

    def value(self, key: str | None) -> Tensor | None:
        tensor = None if key is None else self.tensors.get(key)
        return None if tensor is None else tensor.detach()

    def numbers(self, node: Any) -> Values | None:
        """The values of a parameter or buffer, if they are known."""
        value = self.value(self.key(node))
        return None if value is None else value.double().cpu().numpy()

    def pin(self, node: Any, reason: str) -> None:
        """Its channels must stay."""
        found = self._env.get(node) if isinstance(node, fx.Node) else None
        for channels in found if isinstance(found, list) else [found]:
            if channels is not None:
                self.ties.pin(channels.ids, reason)

    def along(self, node: Any, dim: int) -> Channels | None:
        """The channels of a tensor that has them along one dimension alone; others are pinned."""
        channels = self.channels(node)
        if channels is None or channels.dims == (dim,):
            return channels
        self.ties.pin(channels.ids, f"a layer reads dimension {dim} of a tensor whose channels are in {channels.dims}")
        return None

    def slices(self, node: Any, dim: int, ids: Ids) -> None:
        """Tie the slices of a parameter or buffer to channels; None is one that a layer does not have."""
        key = self.key(node)
        if key is not None and len(shape_of(node)) > dim and shape_of(node)[dim] == len(ids):
            self.ties.tie(self.ties.of(key, dim, len(ids)), ids)
        elif isinstance(node, fx.Node):
            self.ties.pin(ids, "one of its tensors is computed in the forward pass")

    def _parameter(self, node: fx.Node) -> Channels | None:
        """A parameter with one side longer than 1, such as a scale per channel, has channels of its own."""
        key, shape = self.key(node), shape_of(node)
        long = [dim for dim, size in enumerate(shape) if size > 1]
        if key is None or len(long) != 1 or not node.meta["val"].is_floating_point():
            return None
        numbers = self.numbers(node)
        size = shape[long[0]]
        values = np.full(size, np.nan) if numbers is None else numbers.reshape(-1)
        return Channels((long[0],), self.ties.of(key, long[0], size), values)

    def _call(self, node: fx.Node, module: str) -> None:
        if node.target is operator.getitem:
            source = self._env.get(node.args[0])  # type: ignore[arg-type]
            self._env[node] = source[node.args[1]] if isinstance(source, list) else source  # type: ignore[index]
            return
        operation = _operation(node, module)
        rule = RULES.get(operation.name)
        if rule is None:
            self.refuse(operation)
            return
        result = rule(self, operation)
        self._env[node] = result
        if _writes(node):
            self._env[node.args[0]] = result  # type: ignore[index]
            self._wrote_into(node.args[0], module)

    def _wrote_into(self, node: Any, module: str) -> None:
        """What is written into a view changes the tensor behind it, of which nothing is known any more."""
        while isinstance(node, fx.Node) and node.op == "call_function" and _operation(node, module).name in VIEWS:
            node = node.args[0]
            channels = self.channels(node)
            if channels is not None:
                self.ties.pin(channels.ids, f"{module or 'the model'} writes into a part of it")
                self._env[node] = channels.varying()

    def refuse(self, operation: Operation) -> Channels | None:
        """An operator that is not known: what it takes must stay, and what it gives has no channels."""
        for each in operation.node.all_input_nodes:
            self.pin(each, f"{_place(operation)} cannot be followed")
        self._env[operation.node] = None
        return None


def _place(operation: Operation) -> str:
    return f"torch's {operation.name} in {operation.module or 'the model'}"


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name.endswith("_") and not schema.name.endswith("__")


def _operation(node: fx.Node, module: str) -> Operation:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return Operation(node, str(node.target), {}, module)
    named = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
    named.update({each.name: value for each, value in zip(schema.arguments, node.args, strict=False)})
    named.update(node.kwargs)
    name = schema.name.split("::")[-1]
    return Operation(node, name.removesuffix("_") if _writes(node) else name, named, module)
