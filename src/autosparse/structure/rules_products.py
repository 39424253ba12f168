"""Channels through convolutions, linear layers, embeddings and attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from autosparse.structure.channels import Channels, Ids, Values
from autosparse.structure.follow import Follower, Operation, Read, Units, rule, shape_of

COMPUTED = "its weight is computed in the forward pass"
FROM_INPUT = "it comes straight from the model's input"


@rule("conv1d", "conv2d", "conv3d")
def convolution(follower: Follower, operation: Operation) -> Channels | None:
    weight = shape_of(operation["weight"])
    dim = len(operation.shape) - (len(weight) - 2) - 1
    padded = operation["padding"] == "same" or (
        operation["padding"] != "valid" and any(np.atleast_1d(operation["padding"] or 0) != 0)
    )
    return _product(follower, operation, dim, (0, 1), int(operation["groups"] or 1), padded)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(follower: Follower, operation: Operation) -> Channels | None:
    dim = len(operation.shape) - (len(shape_of(operation["weight"])) - 2) - 1
    if operation["groups"] not in (None, 1):
        return follower.refuse(operation)
    # near the edge, and between strides, fewer inputs reach an output: a constant is none behind it
    return _product(follower, operation, dim, (1, 0), 1, padded=True)


@rule("linear")
def linear(follower: Follower, operation: Operation) -> Channels | None:
    return _product(follower, operation, len(operation.shape) - 1, (0, 1), 1, padded=False)


@rule("addmm")
def product_with_bias(follower: Follower, operation: Operation) -> Channels | None:
    """The linear layer of transformers' Conv1D: bias + input @ weight."""
    renamed = {"input": operation["mat1"], "weight": operation["mat2"], "bias": operation["self"]}
    if follower.key(operation["mat2"]) is None or (operation["beta"], operation["alpha"]) != (1, 1):
        return follower.refuse(operation)
    renamed_operation = Operation(operation.node, operation.name, renamed, operation.module)
    return _product(follower, renamed_operation, 1, (1, 0), 1, padded=False)


@rule("embedding")
def embedding(follower: Follower, operation: Operation) -> Channels | None:
    key, shape = follower.key(operation["weight"]), shape_of(operation["weight"])
    if key is None or shape[1] < 2:
        return None
    ids = follower.ties.of(key, 1, shape[1])
    value = follower.value(key)
    values = np.full(len(ids), np.nan)
    if value is not None:
        values[(value == 0).all(0).cpu().numpy()] = 0
    return Channels((len(operation.shape) - 1,), ids, values)


def _product(
    follower: Follower, operation: Operation, dim: int, sides: tuple[int, int], groups: int, padded: bool
) -> Channels | None:
    """Outputs are new channels, the slices of the weight; inputs are read, or in groups belong to the outputs."""
    node, (out_side, in_side) = operation["weight"], sides
    key, shape = follower.key(node), shape_of(node)
    inputs = follower.along(operation["input"], dim)
    if key is None:
        if inputs is not None:
            follower.ties.pin(inputs.ids, f"{operation.module} reads it, and {COMPUTED}")
        count = operation.shape[dim]
        ids = follower.ties.new(count)
        follower.ties.pin(ids, f"{operation.module} makes it, and {COMPUTED}")
        return Channels((dim,), ids, np.full(count, np.nan)) if count > 1 else None
    outputs = follower.ties.of(key, out_side, shape[out_side])
    if groups == 1:
        columns = follower.ties.of(key, in_side, shape[in_side])
        if inputs is None:
            follower.ties.pin(columns, FROM_INPUT)
        else:
            follower.ties.tie(columns, inputs.ids)
            follower.reads.append(_read(follower, operation, key, in_side, inputs, padded))
    else:
        _groups(follower, operation, inputs, outputs, groups)
    follower.slices(operation["bias"], 0, outputs)
    if len(outputs) == 1:
        follower.ties.pin(outputs, "it is the only channel of its layer")
        return None
    return Channels((dim,), outputs, _constants(follower, operation, inputs, sides, groups, padded))


def _groups(follower: Follower, operation: Operation, inputs: Channels | None, outputs: Ids, groups: int) -> None:
    """A group goes as a whole: its inputs and its outputs."""
    if inputs is None:
        follower.ties.pin(outputs, FROM_INPUT)
        return
    ours, theirs = outputs.reshape(groups, -1), inputs.ids.reshape(groups, -1)
    follower.ties.tie_along(ours, 1)
    follower.ties.tie_along(theirs, 1)
    follower.ties.tie(ours[:, 0], theirs[:, 0])
    owner = (follower.key(operation["weight"]) or "").rpartition(".")[0]
    follower.units.append(Units("conv", owner, groups, len(inputs.ids), theirs[:, 0]))


def _read(follower: Follower, operation: Operation, key: str, side: int, inputs: Channels, padded: bool) -> Read:
    weight = follower.value(key)
    is_read = np.ones(len(inputs.ids), dtype=bool)
    if weight is not None:
        is_read = (weight != 0).movedim(side, 0).reshape(len(is_read), -1).any(1).cpu().numpy()
    norm = _norm_behind(operation.node)
    return Read(
        module=key.rpartition(".")[0],
        key=key,
        dim=side,
        ids=inputs.ids,
        values=inputs.values,
        is_read=is_read,
        padded=padded,
        bias=follower.key(operation["bias"]),
        norm_mean=None if norm is None else follower.key(norm),
    )


def _norm_behind(node: fx.Node) -> Any:
    """The running mean of the batch norm that is the only reader of a layer."""
    users = list(node.users)
    named = getattr(getattr(users[0], "target", None), "_schema", None) if len(users) == 1 else None
    return users[0].args[3] if named is not None and named.name == "aten::batch_norm" and users[0].args[0] is node else None


def _constants(
    follower: Follower, operation: Operation, inputs: Channels | None, sides: tuple[int, int], groups: int, padded: bool
) -> Values:
    """The value of every output that depends on constant inputs alone; those without a weight are their bias."""
    weight = follower.value(follower.key(operation["weight"]))
    count = shape_of(operation["weight"])[sides[0]]
    if weight is None:
        return np.full(count, np.nan)
    rows = weight.movedim(sides, (0, 1)).flatten(2) if weight.dim() > 2 else weight.movedim(sides, (0, 1)).unsqueeze(2)
    used, sums = (rows != 0).any(2).cpu().numpy(), rows.double().sum(2).cpu().numpy()
    known = np.full(used.shape[1] * groups, np.nan) if inputs is None else inputs.values
    varies = (np.isnan(known) | (padded & (known != 0))).reshape(groups, 1, -1)
    known = np.where(varies, 0.0, known.reshape(groups, 1, -1))
    used, sums = used.reshape(groups, -1, used.shape[1]), sums.reshape(groups, -1, sums.shape[1])
    values = np.where((used & varies).any(2), np.nan, (sums * known).sum(2)).reshape(-1)
    bias = follower.numbers(operation["bias"])
    if operation["bias"] is not None and bias is None:
        return np.full(count, np.nan)
    constants: Values = values if bias is None else values + bias
    return constants


@rule("scaled_dot_product_attention")
def attention(follower: Follower, operation: Operation) -> Channels | None:
    """A head of queries, keys and values is one unit; what all keys have alike comes out as it is."""
    parts = [follower.channels(operation[name]) for name in ("query", "key", "value")]
    last = len(operation.shape) - 1
    if any(part is None for part in parts):
        for name in ("query", "key", "value"):
            follower.pin(operation[name], f"attention in {operation.module} mixes it with what cannot be followed")
        return None
    heads = [_without(follower, part, (last - 1, last)) for part in parts if part is not None]
    most = max(len(head.ids) if head is not None else 0 for head in heads)
    values = parts[2]
    assert values is not None
    if any(head is None or len(head.dims) != 1 or most % len(head.ids) for head in heads):
        for part in parts:
            if part is not None:
                follower.ties.pin(part.ids, f"attention in {operation.module} has no heads that could be told apart")
        return None
    repeated = [np.repeat(head.ids, most // len(head.ids)) for head in heads if head is not None]
    for other in repeated[1:]:
        follower.ties.tie(repeated[0], other)
    if most != values.ids.shape[0]:
        times = most // len(values.ids)
        values = Channels(values.dims, np.repeat(values.ids, times, 0), np.repeat(values.values, times, 0))
    random = bool(operation["dropout_p"])
    return values.with_values(np.where(random & (values.values != 0), np.nan, values.values))


@rule("matmul", "bmm")
def product_of_activations(follower: Follower, operation: Operation) -> Channels | None:
    left, right = (operation["self"], operation["other" if operation.name == "matmul" else "mat2"])
    weight = follower.key(right)
    if weight is not None and len(shape_of(right)) == 2:
        renamed = Operation(operation.node, operation.name, {"input": left, "weight": right, "bias": None}, operation.module)
        return _product(follower, renamed, len(operation.shape) - 1, (1, 0), 1, padded=False)
    last = len(operation.shape) - 1
    if follower.key(left) is not None or len(shape_of(left)) != len(shape_of(right)) or last < 2:
        return follower.refuse(operation)
    ours = _without(follower, follower.channels(left), (last,))
    theirs = _without(follower, follower.channels(right), (last - 1,))
    if ours is None and theirs is None:
        return None
    if ours is None or theirs is None or not set(ours.dims) & set(theirs.dims):
        return follower.refuse(operation)
    dims = sorted({*ours.dims, *theirs.dims})
    one, other = ours.spread(dims, operation.shape)[0], theirs.spread(dims, operation.shape)[0]
    follower.ties.tie(one, other)
    return Channels(tuple(dims), np.ascontiguousarray(other), np.full(other.shape, np.nan))


def _without(follower: Follower, channels: Channels | None, dims: tuple[int, ...]) -> Channels | None:
    """Without dimensions that a product sums over: what lies along them goes together."""
    if channels is None:
        return None
    ids = channels.ids
    for axis in range(ids.ndim):
        if channels.dims[axis] in dims:
            follower.ties.tie_along(ids, axis)
    index = tuple(0 if dim in dims else slice(None) for dim in channels.dims)
    kept = tuple(dim for dim in channels.dims if dim not in dims)
    if not kept:
        follower.ties.pin(ids, "a product of activations sums over it")
        return None
    return Channels(kept, ids[index], np.full(ids[index].shape, np.nan))
