"""Channels through what works on each of them by itself: arithmetic, activations, norms, pooling, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from autosparse.structure.channels import Channels, Values
from autosparse.structure.follow import Follower, Operation, Result, Units, channel_rule, rule, shape_of

SAME = (
    "clone", "contiguous", "detach", "alias", "to", "_to_copy", "type_as", "lift_fresh", "float", "native_dropout", "identity",
)  # fmt: skip
UNARY = (
    "relu", "relu6", "gelu", "silu", "mish", "sigmoid", "tanh", "elu", "selu", "celu", "leaky_relu", "hardtanh", "hardswish",
    "hardsigmoid", "softplus", "exp", "log", "sqrt", "rsqrt", "square", "abs", "neg", "clamp", "clamp_min", "clamp_max", "pow",
    "erf", "sin", "cos", "reciprocal", "softsign", "log_sigmoid", "threshold", "sign", "nan_to_num", "logical_not", "log1p",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "maximum", "minimum", "where", "masked_fill", "addcmul", "eq", "ne", "ge", "gt", "le", "lt",
    "__and__", "bitwise_and", "logical_and", "logical_or", "rsub", "true_divide", "lerp",
)  # fmt: skip
EXACT = ("add", "sub", "mul", "div", "maximum", "minimum")
LIKE = ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "full_like", "bernoulli")
REDUCTIONS = ("mean", "sum", "amax", "amin", "var", "std", "linalg_vector_norm", "norm", "max", "logsumexp", "any", "all")
WINDOWS = (
    "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "max_pool2d_with_indices", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d",
    "upsample_linear1d", "upsample_bicubic2d", "_upsample_nearest_exact2d", "upsample_trilinear3d",
)  # fmt: skip


@rule(*SAME)
def unchanged(follower: Follower, operation: Operation) -> Channels | None:
    return follower.channels(operation.node.args[0])


@channel_rule(*UNARY)
def activation(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    rest = operation.node.args[1:]
    if any(isinstance(each, fx.Node) for each in (*rest, *operation.node.kwargs.values())):
        return channels.varying() if _sizes_of_one(operation) else follower.refuse(operation)
    function: Any = operation.node.target
    before = torch.from_numpy(np.nan_to_num(np.ascontiguousarray(channels.values)))
    after = function(before.clone(), *rest, **operation.node.kwargs).double().numpy()
    return channels.with_values(np.where(np.isnan(channels.values), np.nan, after))


def _sizes_of_one(operation: Operation) -> bool:
    return all(np.prod(shape_of(each)) == 1 for each in operation.node.all_input_nodes[1:])


@rule(*BINARY)
def arithmetic(follower: Follower, operation: Operation) -> Channels | None:
    """Channels at the same place are one channel from here on."""
    shape = operation.shape
    nodes = [each for each in operation.node.args if isinstance(each, fx.Node)]
    aligned = [(node, _aligned(follower.channels(node), shape_of(node), shape)) for node in nodes]
    known = [channels for _, channels in aligned if channels is not None]
    if not known:
        return None
    dims = sorted({dim for channels in known for dim in channels.dims})
    spread = [channels.spread(dims, shape) for channels in known]
    for ids, _ in spread[1:]:
        follower.ties.tie(spread[0][0], ids)
    result = Channels(tuple(dims), np.ascontiguousarray(spread[0][0]), np.full(spread[0][0].shape, np.nan))
    for node, channels in aligned:
        if channels is None:
            _stranger(follower, operation, node, result)
    if operation.name not in EXACT:
        return result
    return result.with_values(_computed(follower, operation, dims, shape))


def _aligned(channels: Channels | None, shape: Sequence[int], target: Sequence[int]) -> Channels | None:
    return None if channels is None else channels.moved([dim + len(target) - len(shape) for dim in channels.dims])


def _stranger(follower: Follower, operation: Operation, node: fx.Node, result: Channels) -> None:
    """A tensor without known channels: a parameter is cut along, a single value fits any number of channels."""
    shape = shape_of(node)
    offset = len(operation.shape) - len(shape)
    wide = [dim for dim in result.dims if dim >= offset and shape[dim - offset] > 1]
    if not wide:
        return
    if follower.key(node) is not None and len(result.dims) == 1:
        follower.slices(node, wide[0] - offset, result.ids)
        return
    follower.ties.pin(result.ids, f"{operation.module or 'the model'} combines it with what cannot be followed")


def _computed(follower: Follower, operation: Operation, dims: Sequence[int], shape: Sequence[int]) -> Values:
    """Of two constants; 0 times whatever is 0."""
    sides: list[Values] = []
    for each in operation.node.args[:2]:
        if not isinstance(each, fx.Node):
            sides.append(np.asarray(float(each)) if isinstance(each, int | float) else np.asarray(np.nan))
            continue
        channels = _aligned(follower.channels(each), shape_of(each), shape)
        numbers = follower.numbers(each) if channels is None else None
        if channels is not None:
            sides.append(channels.spread(dims, shape)[1])
        else:
            sides.append(numbers.reshape(()) if numbers is not None and numbers.size == 1 else np.asarray(np.nan))
    one, other = sides
    alpha = operation["alpha"] if isinstance(operation["alpha"], int | float) else 1
    if operation.name == "mul":
        return np.where((one == 0) | (other == 0), 0.0, one * other)
    if operation.name == "div":
        return (
            np.where(one == 0, 0.0, one / np.where(other == 0, np.nan, other))
            if not operation["rounding_mode"]
            else one * np.nan
        )
    function = {"maximum": np.maximum, "minimum": np.minimum}.get(operation.name)
    if function is not None:
        return np.asarray(function(one, other))
    return one + other * alpha if operation.name == "add" else one - other * alpha


@channel_rule(*LIKE)
def another_of_its_kind(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    return channels.varying()


@channel_rule(*REDUCTIONS)
def reduction(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    size = len(shape_of(operation.node.args[0]))
    given = operation["dim"]
    gone = set(range(size)) if given is None or given == [] else {int(dim) % size for dim in np.atleast_1d(given)}
    if gone & set(channels.dims) or isinstance(operation.node.meta["val"], tuple | list):
        follower.ties.pin(channels.ids, f"{operation.module or 'the model'} takes the {operation.name} over it")
        return None
    kept = channels if operation.name in ("mean", "amax", "amin") else _only_zero(channels, operation.name == "sum")
    if operation["keepdim"]:
        return kept
    return kept.moved([dim - sum(other < dim for other in gone) for dim in channels.dims])


def _only_zero(channels: Channels, zero_stays: bool = True) -> Channels:
    return channels.with_values(np.where((channels.values == 0) & zero_stays, 0.0, np.nan))


@channel_rule(*WINDOWS)
def pooling(follower: Follower, operation: Operation, channels: Channels) -> Result:
    """Over the places of one channel; an average that counts padding changes a constant."""
    spatial = int("".join(letter for letter in operation.name.split("_with")[0] if letter.isdigit())[-1])
    if any(dim >= len(operation.shape or shape_of(operation.node.args[0])) - spatial for dim in channels.dims):
        return follower.refuse(operation)
    counts_padding = operation.name.startswith("avg_pool") and any(np.atleast_1d(operation["padding"] or 0))
    result = _only_zero(channels) if counts_padding and operation["count_include_pad"] else channels
    return [result, None] if operation.name == "max_pool2d_with_indices" else result


@channel_rule("pad", "constant_pad_nd")
def padding(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    widths, size = operation["pad"], len(operation.shape)
    touched = {size - 1 - place // 2 for place, width in enumerate(widths) if width}
    if touched & set(channels.dims):
        return _more_channels(follower, operation, channels, touched)
    if operation.name == "pad" and operation["mode"] != "constant":
        return channels
    return channels.with_values(np.where(channels.values == float(operation["value"] or 0), channels.values, np.nan))


def _more_channels(follower: Follower, operation: Operation, channels: Channels, touched: set[int]) -> Channels | None:
    """Channels of zeros around the others, as in shortcuts without weights: their number is fixed in the code."""
    widths, size = operation["pad"], len(operation.shape)
    place = 2 * (size - 1 - channels.dims[0])
    is_constant = operation.name != "pad" or operation["mode"] == "constant"
    if channels.dims != tuple(touched) or not is_constant or min(widths) < 0:
        return follower.refuse(operation)
    ids, values = [channels.ids], [channels.values]
    for at, count in ((0, widths[place]), (len(channels.ids), widths[place + 1])):
        new = follower.ties.new(count)
        follower.ties.pin(new, f"{operation.module or 'the model'} adds a fixed number of channels of zeros")
        ids.insert(0 if at == 0 else len(ids), new)
        values.insert(0 if at == 0 else len(values), np.full(count, float(operation["value"] or 0)))
    return Channels(channels.dims, np.concatenate(ids), np.concatenate(values))


@channel_rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    if not operation["train"] or not operation["p"]:
        return channels
    return _only_zero(channels, "alpha" not in operation.name)


@rule("batch_norm", "instance_norm")
def batch_norm(follower: Follower, operation: Operation) -> Channels | None:
    """A constant becomes the norm's bias where the batch gives the statistics; so does what the norm multiplies by 0."""
    channels = follower.along(operation["input"], 1)
    if channels is None:
        return None
    for name in ("weight", "bias", "running_mean", "running_var"):
        follower.slices(operation[name], 0, channels.ids)
    count, values = len(channels.ids), channels.values
    scale, shift = (_or(follower.numbers(operation[name]), count, other) for name, other in (("weight", 1), ("bias", 0)))
    mean, variance = (follower.numbers(operation[name]) for name in ("running_mean", "running_var"))
    by_batch = operation["training"] if operation.name == "batch_norm" else operation["use_input_stats"]
    if operation["weight"] is not None and follower.numbers(operation["weight"]) is None:
        return channels.varying()
    if by_batch or mean is None or variance is None:
        return channels.with_values(np.where(np.isnan(values) & (scale != 0), np.nan, shift))
    fixed = (values - mean) / np.sqrt(variance + operation["eps"]) * scale + shift
    return channels.with_values(np.where(scale == 0, shift, fixed))


def _or(numbers: Values | None, count: int, other: float) -> Values:
    return np.full(count, float(other)) if numbers is None else numbers


@rule("group_norm")
def group_norm(follower: Follower, operation: Operation) -> Channels | None:
    """A group goes as a whole."""
    channels = follower.along(operation["input"], 1)
    if channels is None:
        return None
    groups = int(operation["num_groups"])
    for name in ("weight", "bias"):
        follower.slices(operation[name], 0, channels.ids)
    if groups == 1:
        follower.ties.pin(channels.ids, f"the norm {operation.module} takes the mean over it")
        return channels.varying()
    units = channels.ids.reshape(groups, -1)
    follower.ties.tie_along(units, 1)
    owner = (follower.key(operation["weight"]) or "").rpartition(".")[0] or operation.module
    follower.units.append(Units("norm", owner, groups, len(channels.ids), units[:, 0]))
    values = channels.values.reshape(groups, -1)
    alike = np.broadcast_to((values == values[:, :1]).all(1, keepdims=True), values.shape).reshape(-1)
    scale, shift = (_or(follower.numbers(operation[name]), len(alike), other) for name, other in (("weight", 1), ("bias", 0)))
    if operation["weight"] is not None and follower.numbers(operation["weight"]) is None:
        return channels.varying()
    return channels.with_values(np.where(alike | (scale == 0), shift, np.nan))


@channel_rule("layer_norm", "rms_norm", "_fused_rms_norm")
def layer_norm(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    size, over = len(shape_of(operation["input"])), len(operation["normalized_shape"])
    if any(dim >= size - over for dim in channels.dims):
        follower.ties.pin(channels.ids, f"the norm {operation.module} takes the mean over it")
    if over == 1 and channels.dims == (size - 1,):
        for name in ("weight", "bias"):
            follower.slices(operation[name], 0, channels.ids)
    return channels.varying()


@channel_rule("prelu", "_prelu_kernel")
def prelu(follower: Follower, operation: Operation, channels: Channels) -> Channels | None:
    if int(np.prod(shape_of(operation["weight"]))) > 1:
        aligned = follower.along(operation["self"], 1)
        if aligned is None:
            return follower.refuse(operation)
        follower.slices(operation["weight"], 0, aligned.ids)
    return channels.with_values(np.where(channels.values >= 0, channels.values, np.nan))
