"""Channels through views, permutations, cuts and joins."""

from __future__ import annotations

from typing import Any

import numpy as np

from autosparse.structure.channels import Channels, reshaped, tidy
from autosparse.structure.follow import Follower, Operation, Result, Units, channel_rule, rule, shape_of


@channel_rule("view", "reshape", "flatten", "unflatten", "_unsafe_view", "squeeze", "unsqueeze", "view_as", "reshape_as")
def view(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    """Where one dimension of channels becomes several, such as heads and what is in a head, the units go as a whole."""
    after = reshaped(channels, shape_of(operation.node.args[0]), operation.shape)
    if after is not None and len(after.dims) > len(channels.dims):
        free = len(after.dims) - 2
        for axis in range(len(after.dims)):
            if axis != free:
                follower.ties.tie_along(after.ids, axis)
        units = np.moveaxis(after.ids, free, 0).reshape(after.ids.shape[free], -1)[:, 0]
        follower.units.append(Units("heads", operation.module, len(units), after.ids.size, units))
    return after


@channel_rule("permute", "transpose", "t", "movedim", "swapaxes", "swapdims")
def permutation(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    order = _order(operation, len(shape_of(operation.node.args[0])))
    return channels.moved([order.index(dim) for dim in channels.dims])


def _order(operation: Operation, size: int) -> list[int]:
    """For every dimension of the result the one that it was."""
    order = list(range(size))
    if operation.name == "permute":
        return [int(dim) % size for dim in operation["dims"]]
    if operation.name == "t":
        return order[::-1]
    if operation.name == "movedim":
        sources, targets = (np.atleast_1d(operation[name]) % size for name in ("source", "destination"))
        rest = [dim for dim in order if dim not in sources]
        for target, source in sorted(zip(targets.tolist(), sources.tolist(), strict=True)):
            rest.insert(target, source)
        return rest
    first, second = (int(operation[name]) % size for name in (_DIMS[operation.name]))
    order[first], order[second] = order[second], order[first]
    return order


_DIMS = {"transpose": ("dim0", "dim1"), "swapaxes": ("axis0", "axis1"), "swapdims": ("dim0", "dim1")}


@channel_rule("expand", "expand_as", "broadcast_to")
def expand(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    offset = len(operation.shape) - len(shape_of(operation.node.args[0]))
    return channels.moved([dim + offset for dim in channels.dims])


@rule("select")
def select(follower: Follower, operation: Operation) -> Channels | None:
    return _selected(follower, operation, operation["index"])


@rule("unbind")
def unbind(follower: Follower, operation: Operation) -> Result:
    dim = operation["dim"] % len(shape_of(operation["self"]))
    return [_selected(follower, operation, index) for index in range(shape_of(operation["self"])[dim])]


def _selected(follower: Follower, operation: Operation, index: int) -> Channels | None:
    channels = follower.channels(operation["self"])
    if channels is None:
        return None
    dim = operation["dim"] % len(shape_of(operation["self"]))
    ids, values = channels.ids, channels.values
    dims = [each - (each > dim) for each in channels.dims if each != dim]
    if dim in channels.dims:
        axis = channels.dims.index(dim)
        ids, values = np.asarray(ids.take(index, axis)), np.asarray(values.take(index, axis))
        if not dims:
            follower.ties.pin(channels.ids, f"{operation.module or 'the model'} takes single channels by their number")
            return None
    return tidy(dims, ids, values)


@channel_rule(
    "slice", "narrow", "index_select", "roll", "flip", "cumsum", "softmax", "log_softmax", "_softmax", "sort", "argsort"
)
def along_one_dimension(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    """They leave channels alone unless they work along them."""
    source = operation.node.args[0]
    size = len(shape_of(source))
    dims = operation["dims"] if operation.name in ("roll", "flip") else [operation["dim"]]
    touched = {int(dim) % size for dim in dims} if dims else set(range(size))
    if not touched & set(channels.dims):
        return channels if operation.name in ("slice", "narrow", "index_select", "roll", "flip") else channels.varying()
    if operation.name in ("slice", "narrow") and shape_of(source) == operation.shape:
        return channels
    what = "a fixed range of them" if operation.name in ("slice", "narrow", "index_select") else f"{operation.name} over them"
    follower.ties.pin(channels.ids, f"{operation.module or 'the model'} takes {what}")
    return None


@rule("chunk", "split", "split_with_sizes", "tensor_split")
def pieces(follower: Follower, operation: Operation) -> Result:
    channels = follower.channels(operation["self"])
    shapes = [tuple(each.shape) for each in operation.node.meta["val"]]
    if channels is None:
        return [None] * len(shapes)
    dim = (operation["dim"] or 0) % len(shape_of(operation["self"]))
    if dim not in channels.dims:
        return [channels] * len(shapes)
    axis = channels.dims.index(dim)
    if operation.name != "chunk" or len({shape[dim] for shape in shapes}) > 1:
        follower.ties.pin(channels.ids, f"{operation.module or 'the model'} takes a fixed range of them")
    ends = np.cumsum([shape[dim] for shape in shapes])[:-1]
    parts = list(zip(np.split(channels.ids, ends, axis), np.split(channels.values, ends, axis), strict=True))
    for ids, _ in parts[1:]:
        if ids.shape == parts[0][0].shape:  # as many must be left in each
            follower.ties.tie(parts[0][0], ids)
    return [tidy(channels.dims, ids, values) for ids, values in parts]


@rule("cat", "concat")
def join(follower: Follower, operation: Operation) -> Channels | None:
    tensors: list[Any] = operation["tensors"]
    dim = (operation["dim"] or 0) % len(operation.shape)
    found = [follower.channels(tensor) for tensor in tensors]
    known = [channels for channels in found if channels is not None]
    if not known:
        return None
    if all(channels is not None and dim not in channels.dims for channels in found):
        for channels in known[1:]:
            if channels.dims != known[0].dims:
                return follower.refuse(operation)
            follower.ties.tie(known[0].ids, channels.ids)
        same = np.all([channels.values == known[0].values for channels in known], axis=0)
        return known[0].with_values(np.where(same, known[0].values, np.nan))
    ids, values = [], []
    for tensor, own in zip(tensors, found, strict=True):
        if own is not None and own.dims == (dim,):
            ids.append(own.ids)
            values.append(own.values)
            continue
        if own is not None:
            follower.ties.pin(own.ids, f"{operation.module or 'the model'} joins it to other channels")
        size = shape_of(tensor)[dim]
        ids.append(follower.ties.new(size))
        follower.ties.pin(ids[-1], "it comes from what cannot be followed")
        values.append(np.full(size, np.nan))
    return Channels((dim,), np.concatenate(ids), np.concatenate(values))
