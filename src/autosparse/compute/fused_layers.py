"""The steps of a fused network, as functions on modules: the values between them are tensors or normalised values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from autosparse.compute.overrides import SPARSE, override_of
from autosparse.compute.plain_modules import is_norm_with_activation
from autosparse.compute.planner import DENSE
from autosparse.compute.routing import gradient_entries, pair, precision_now, weight_for
from autosparse.kernels import autograd, normalise
from autosparse.kernels.fused_layer import Norm
from autosparse.kernels.geometry import Geometry
from autosparse.kernels.layer_call import LayerCall
from autosparse.kernels.library import lanes
from autosparse.kernels.memory import is_images_last

TURNED = (torch.float32, torch.bfloat16)


class Normalised(NamedTuple):
    """What a batch norm gives, kept as the raw value and the folded batch norm; perhaps after a ReLU."""

    raw: Tensor
    folded: Tensor
    relu: bool = False


def to_images(x: Tensor | float) -> Tensor | float:
    """The same tensor with images last, where that fills vectors: the order in which the kernels are fastest."""
    if not isinstance(x, Tensor) or x.dim() != 4 or x.dtype not in TURNED or x.shape[0] % lanes() or is_images_last(x):
        return x
    return autograd.in_order(x, images_last=True)


def to_channels(x: Tensor) -> Tensor:
    """The same tensor in an order that torch knows."""
    return autograd.in_order(x, images_last=False) if is_images_last(x) else x


def conv_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor | Normalised) -> Normalised:
    """norm(conv(x)) in training, running statistics included."""
    raw, folded, relu = x if isinstance(x, Normalised) else (_cast(x), None, False)
    raw, folded, statistics = autograd.conv_norm(raw, folded, relu, *_call(conv, norm, raw.shape))
    track(norm, statistics, raw)
    return Normalised(raw, folded)


def _cast(x: Tensor) -> Tensor:
    """As autocast does to the input of a convolution."""
    return x.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else x


def conv_norm_as_tensor(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """norm(conv(x)) by one fused step; a batch norm that has an activation applies it."""
    result = plain(conv_norm(conv, norm, x))
    return norm.act(result) if is_norm_with_activation(norm) else result  # type: ignore[operator]


def activated(value: Normalised) -> Normalised:
    return value._replace(relu=True)


def plain(value: Normalised) -> Tensor:
    """The value as a tensor, for whoever else uses it."""
    return autograd.join(value.raw, value.folded, None, None, value.relu)


def joined(first: Normalised, second: Tensor | Normalised | float, in_place: bool, relu: bool) -> Tensor:
    """first + second, and its ReLU if wanted."""
    if not isinstance(second, Tensor | Normalised) or _broadcasts(first, second):
        total, other = plain(first), plain(second) if isinstance(second, Normalised) else second
        total = total.add_(other) if in_place else total + other
        return total.relu() if relu else total
    other, folded = second[:2] if isinstance(second, Normalised) else (second, None)
    return autograd.join(first.raw, first.folded, other, folded, relu)


def _broadcasts(first: Normalised, second: Tensor | Normalised) -> bool:
    other = second.raw if isinstance(second, Normalised) else second
    return other.shape != first.raw.shape or other.dtype is not first.raw.dtype


def joined_conv_norm(
    first: Normalised, second: Tensor | Normalised | float, in_place: bool, relu: bool, conv: nn.Conv2d, norm: nn.BatchNorm2d
) -> tuple[Tensor, Normalised]:
    """The sum, and norm(conv(sum))."""
    if not isinstance(second, Tensor | Normalised) or _broadcasts(first, second):
        total = joined(first, second, in_place, relu)
        return total, conv_norm(conv, norm, total)
    other, other_folded = second[:2] if isinstance(second, Normalised) else (second, None)
    branches = first.raw, first.folded, other, other_folded
    result, raw, folded, statistics = autograd.join_conv_norm(*branches, relu, *_call(conv, norm, first.raw.shape))
    track(norm, statistics, raw)
    return result, Normalised(raw, folded)


def _call(conv: nn.Conv2d, norm: nn.BatchNorm2d, shape: torch.Size) -> tuple[LayerCall, Norm]:
    """What the modules do to an input of this shape."""
    record = override_of(conv)
    entries: str | Tensor = "all"
    passes = DENSE
    if record is not None and record.owner == SPARSE:
        precision = precision_now()
        record.note_shape(shape, precision or record.precision)
        # before the weight: a mask is taken from what the weight is made of
        entries, passes = gradient_entries(conv), record.passes_in(precision)
    kind, mask = ("mask", entries) if isinstance(entries, Tensor) else (entries, None)
    shift = norm.running_mean
    if shift is None:
        shift = torch.zeros(norm.num_features)
    geometry = Geometry(pair(conv.stride), pair(conv.padding), pair(conv.dilation), conv.groups)
    weight = weight_for(conv, passes)
    return LayerCall(weight, conv.bias, geometry, kind, mask, passes), Norm(norm.weight, norm.bias, shift, norm.eps)


def track(norm: nn.BatchNorm2d, statistics: Tensor, raw: Tensor) -> None:
    """Running statistics as torch keeps them."""
    count = raw.numel() // raw.shape[1]
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {raw.shape}")
    if norm.running_mean is None or norm.running_var is None or not norm.track_running_stats:
        return
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    factor = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    normalise.track_statistics(raw, statistics, factor, norm.running_mean, norm.running_var)
    torch.autograd.graph.increment_version((norm.running_mean, norm.running_var))
