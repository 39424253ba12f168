"""The equations: soft threshold with annealed gradient, mask with gated gradient, power reparametrisation."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from ctypes import c_float
from typing import Any

import torch
from torch import Tensor

from autosparse.kernels import masks
from autosparse.kernels import threshold as native
from autosparse.kernels.memory import is_eager_memory

THRESHOLD_FUNCTIONS = ("sigmoid", "exp", "identity")


def soft_threshold(
    weight: Tensor, threshold: Tensor | float, gate: Tensor | float = 0.0, reach: Tensor | float | None = None
) -> Tensor:
    """sign(w) * relu(|w| - T), with Gradient Annealing in the backward pass (eq. 1, eq. 7, Appendix A).

    Pruned weights receive gate * G, gate in [0, 1]: 0 is STR, 1 the straight-through estimator. With `reach`, those with
    |w| < reach receive nothing (eq. 8). A negative threshold prunes nothing.
    """
    given = _like(threshold, weight), "identity", _like(gate, weight), None if reach is None else _like(reach, weight)
    return learned_soft_threshold(weight, *given)[0]


def learned_soft_threshold(
    weight: Tensor, s: Tensor, function: str, gate: Tensor, reach: Tensor | None
) -> tuple[Tensor, int | None]:
    """The same with T = g(s), and how many weights it leaves, where that is known without another pass over them."""
    if not native.fits(weight, s, gate, reach):
        return shaped_threshold(weight, threshold_value(s, function), gate, reach, 1, None), None
    if s.dtype is not torch.float32:
        s, function = threshold_value(s, function), "identity"
    counted: list[int] = []  # a second result would take torch longer
    is_trained = weight.requires_grad and torch.is_grad_enabled()
    effective: Tensor = _native_soft_threshold(weight, s, gate, reach, function, is_trained, counted)
    return effective, counted[0]


def shaped_threshold(
    weight: Tensor, threshold: Tensor, gate: Tensor, reach: Tensor | None, shape: float, rescale_dim: int | None
) -> Tensor:
    """sign(w) * (|w|^p - T^p)^(1/p) where |w| > T, with p = `shape`: 1 is soft, 3 Feather's, infinity hard.

    With `rescale_dim` each output channel is scaled to its magnitude before pruning (ST-3). Gradients are those of
    `soft_threshold`, whatever the shape and the scale.
    """
    effective: Tensor = _ShapedThreshold.apply(weight, threshold, gate, reach, shape, rescale_dim)  # type: ignore[no-untyped-call]
    return effective


def shared_threshold(
    weight: Tensor,
    threshold: Tensor,
    gate: Tensor,
    reach: Tensor | None,
    rows: int,
    channel_dim: int,
    shape: float = 1.0,
    rescale_dim: int | None = None,
) -> Tensor:
    """Consecutive output channels share their zeros: w * max(0, 1 - T/n), n the root mean square of `rows` weights.

    `shape` and `rescale_dim` are those of `shaped_threshold`. Active weights receive G, pruned ones gate * G, and the
    threshold the sum of -G w/n over active weights alone: with those of pruned ones too, runs are unstable.
    """
    given = weight, threshold, gate, reach, rows, channel_dim, shape, rescale_dim
    effective: Tensor = _SharedThreshold.apply(*given)  # type: ignore[no-untyped-call]
    return effective


def shared_norm(weight: Tensor, rows: int, channel_dim: int) -> Tensor:
    """The root mean square over each group of `rows` consecutive output channels, at every weight's place.

    The last group is smaller where the number of channels is no multiple.
    """
    exact = weight.movedim(channel_dim, 0).to(torch.promote_types(weight.dtype, torch.float32))
    channels = len(exact)
    groups = -(-channels // rows)
    squares = torch.nn.functional.pad(exact.reshape(channels, -1).square(), (0, 0, 0, groups * rows - channels))
    sizes = torch.full((groups, 1), float(rows), device=weight.device, dtype=exact.dtype)
    if groups:
        sizes[-1] = channels - (groups - 1) * rows
    norms = (squares.view(groups, rows, squares.shape[1]).sum(1) / sizes).sqrt()
    everywhere = norms.repeat_interleave(rows, 0)[:channels].reshape(exact.shape)
    return everywhere.movedim(0, channel_dim).to(weight.dtype)


def shrunk(weight: Tensor, threshold: Tensor, shape: float) -> Tensor:
    """sign(w) * (|w|^p - T^p)^(1/p) where |w| > T, else 0."""
    bound = threshold.to(weight.dtype).clamp_min(0)
    if math.isinf(shape):
        return torch.where(weight.abs() > bound, weight, 0)
    if shape == 1:
        return weight - torch.minimum(torch.maximum(weight, -bound), bound)
    # (|w|^p - T^p)^(1/p) = |w| (1 - (T/|w|)^p)^(1/p): no power of a small number, which would vanish
    ratio = torch.where(weight.abs() > bound, bound / weight.abs(), 1)
    kept = (1 - ratio.pow(shape)).clamp_min(torch.finfo(weight.dtype).tiny).pow(1 / shape)
    return torch.where(weight.abs() > bound, weight * kept, 0)


def channel_scale(weight: Tensor, active: Tensor, channel_dim: int) -> Tensor:
    """ST-3's factor per output channel: 1.01 / (r + 0.01), r the part of the channel's mean |w| that is active."""
    magnitudes, others = weight.abs(), [dim for dim in range(weight.dim()) if dim != channel_dim]
    left = (magnitudes * active).mean(others, keepdim=True) + 1e-6
    return 1.01 / (left / (magnitudes.mean(others, keepdim=True) + 1e-6) + 0.01)


def gated_mask(weight: Tensor, active: Tensor, gate: Tensor | float | None = None, receives: Tensor | None = None) -> Tensor:
    """w * active for a mask from outside; pruned weights receive gate * G, only where `receives` if that is given.

    A gate of None is closed for good: as 0, and cheaper.
    """
    return counted_gated_mask(weight, active, None if gate is None else _like(gate, weight), receives)[0]


def counted_gated_mask(
    weight: Tensor, active: Tensor, gate: Tensor | None, receives: Tensor | None
) -> tuple[Tensor, int | None]:
    """The same, and how many weights outside the mask are not zero, where that is known without another pass over them."""
    if not masks.fits(weight, active, receives):
        return _GatedMask.apply(weight, active, gate, receives), None  # type: ignore[no-untyped-call]
    strays: list[int] = []  # a second result would take torch longer
    effective: Tensor = _native_gated_mask(weight, active, gate, receives, strays)
    return effective, strays[0]


def power(weight: Tensor, exponent: float) -> Tensor:
    """PowerPropagation: v * |v|^(a - 1)."""
    return weight * weight.abs().pow(exponent - 1)


def power_inverse(weight: Tensor, exponent: float) -> Tensor:
    """The v whose power(v, a) is `weight`."""
    return weight.sign() * weight.abs().pow(1 / exponent)


def is_active(weight: Tensor, threshold: Tensor) -> Tensor:
    """Where the soft threshold leaves a non-zero, decided in the weight's own precision as the forward pass does."""
    return weight.abs() > threshold.to(weight.dtype).clamp_min(0)


def count_active(weight: Tensor, threshold: Tensor) -> Tensor:
    """How many weights the soft threshold leaves."""
    if native.fits(weight, threshold):
        return torch.tensor(native.count_above(weight, max(threshold.item(), 0.0)))
    return torch.count_nonzero(is_active(weight, threshold))


def threshold_value(s: Tensor, function: str) -> Tensor:
    """T = g(s)."""
    if function == "sigmoid":
        return torch.sigmoid(s)
    return s.exp() if function == "exp" else s


def threshold_inverse(threshold: Tensor, function: str) -> Tensor:
    """The s with g(s) = T; T is kept inside the range of g, so an all-zero layer gives a finite s."""
    if function == "sigmoid":
        return torch.logit(threshold.clamp(1e-12, 1 - 1e-6))
    return threshold.clamp_min(1e-12).log() if function == "exp" else threshold


# Written for few passes over memory and few temporaries: on a CPU comparisons made in place on floats and maximum() are
# several times faster than boolean masks and torch.where, and booleans seen as bytes are faster than as booleans.
# max(active, gate) is exact for a gate in [0, 1].


def as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """1 where the mask is True, 0 elsewhere; a new tensor."""
    return mask.view(torch.uint8).to(dtype)


def _gradient_map(active: Tensor, gate: Tensor, receives: Tensor | None) -> Tensor:
    """G_I = 1 on active weights, gate on the pruned ones (0 outside `receives`)."""
    gate = gate.to(active.dtype)
    return torch.maximum(active, gate if receives is None else as_numbers(receives, active.dtype).mul_(gate))


def _threshold_gradients(grad: Tensor, saved: Sequence[Any], is_learned: bool) -> tuple[Tensor, Tensor | None]:
    """What the weight and the threshold receive."""
    weight, threshold, gate, reach = saved
    receives = None if reach is None else weight.abs() >= reach.to(weight.dtype)
    active = weight.abs().gt_(threshold.to(weight.dtype).clamp_min(0))
    scaled = _gradient_map(active, gate, receives).mul_(grad)
    if not is_learned:
        return scaled, None
    signed = weight.sign().mul_(scaled)
    if threshold.numel() == 1:
        return scaled, -signed.sum(dtype=threshold.dtype).reshape(threshold.shape)
    return scaled, -signed.to(threshold.dtype).sum_to_size(threshold.shape)


class _ShapedThreshold(torch.autograd.Function):
    """Whatever the values forward, the gradients of the soft threshold."""

    @staticmethod
    def forward(
        weight: Tensor, threshold: Tensor, gate: Tensor, reach: Tensor | None, shape: float, rescale_dim: int | None
    ) -> Tensor:
        effective = shrunk(weight, threshold, shape)
        return effective if rescale_dim is None else effective.mul_(channel_scale(weight, effective != 0, rescale_dim))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_threshold_gradients(grad, ctx.saved_tensors, ctx.needs_input_grad[1]), None, None, None, None


class _SharedThreshold(torch.autograd.Function):
    """What is active is decided by the norm over a group of output channels."""

    @staticmethod
    def forward(
        weight: Tensor,
        threshold: Tensor,
        gate: Tensor,
        reach: Tensor | None,
        rows: int,
        channel_dim: int,
        shape: float,
        rescale_dim: int | None,
    ) -> Tensor:
        norms = shared_norm(weight, rows, channel_dim)
        active = norms > threshold.to(weight.dtype).clamp_min(0)
        effective = torch.where(active, weight * (shrunk(norms, threshold, shape) / norms), 0)
        return effective if rescale_dim is None else effective.mul_(channel_scale(weight, active, rescale_dim))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.group = inputs[4:6]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, threshold, gate, reach = ctx.saved_tensors
        norms = shared_norm(weight, *ctx.group)
        receives = None if reach is None else norms >= reach.to(weight.dtype)
        active = norms > threshold.to(weight.dtype).clamp_min(0)
        scaled = _gradient_map(as_numbers(active, weight.dtype), gate, receives).mul_(grad)
        of_threshold = None
        if ctx.needs_input_grad[1]:
            share = torch.where(active, weight * grad / norms, 0)
            of_threshold = -share.to(threshold.dtype).sum_to_size((1,) * weight.dim()).reshape(threshold.shape)
        return scaled, of_threshold, None, None, None, None, None, None


class _NativeSoftThreshold(torch.autograd.Function):
    """T = g(s) and the same by the kernels: one node where a small layer would feel every further one.

    torch calls a function without setup_context, which only functorch needs, much faster.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        s: Tensor,
        gate: Tensor,
        reach: Tensor | None,
        function: str,
        is_trained: bool,
        counted: list[int],
    ) -> Tensor:
        ctx.save_for_backward(weight, s, gate, reach)
        threshold = threshold_value(s, function).item()
        ctx.given = function, threshold
        effective, count = native.soft_threshold(weight, max(threshold, 0.0), is_trained)
        counted.append(count)
        return effective

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weight, s, gate, reach), (function, threshold) = ctx.saved_tensors, ctx.given
        received = learned_gradients(grad, weight, s, gate, reach, function, threshold, ctx.needs_input_grad[1])
        return *received, None, None, None, None, None


def learned_gradients(
    grad: Tensor,
    weight: Tensor,
    s: Tensor,
    gate: Tensor,
    reach: Tensor | None,
    function: str,
    threshold: float,
    is_learned: bool,
) -> tuple[Tensor, Tensor | None]:
    """What the weight and s receive under T = g(s), by the kernels where they can."""
    if torch.is_grad_enabled() or not is_eager_memory(grad):  # gradients of gradients, and traces, need torch's operations
        value = threshold_value(s, function)
        scaled, of_threshold = _threshold_gradients(grad, (weight, value, gate, reach), is_learned)
        return scaled, None if of_threshold is None else _through_threshold_value(of_threshold, value, function)
    bar = None if reach is None else reach.item()
    scaled, total = native.soft_threshold_gradients(weight, grad, max(threshold, 0.0), gate.item(), bar)
    return scaled, torch.full_like(s, _in_float32(-total, threshold, function)) if is_learned else None


def _through_threshold_value(of_threshold: Tensor, threshold: Tensor, function: str) -> Tensor:
    """The gradient of s from that of T = g(s), as torch's own backward pass has it."""
    if function == "sigmoid":
        of_s: Tensor = torch.ops.aten.sigmoid_backward(of_threshold, threshold)
        return of_s
    return of_threshold * threshold if function == "exp" else of_threshold


def _in_float32(of_threshold: float, threshold: float, function: str) -> float:
    """The same for one number without torch's calls, and with their bits: a double rounded after every operation."""
    if function == "identity":
        return of_threshold
    factor = c_float(of_threshold).value
    if function == "sigmoid":
        factor = c_float(factor * c_float(1.0 - threshold).value).value
    return c_float(factor * threshold).value


class _GatedMask(torch.autograd.Function):
    @staticmethod
    def forward(weight: Tensor, active: Tensor, gate: Tensor | None, receives: Tensor | None) -> Tensor:
        return as_numbers(active, weight.dtype).mul_(weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        active, gate, receives = ctx.saved_tensors
        share = as_numbers(active, grad.dtype)
        return (share if gate is None else _gradient_map(share, gate, receives)).mul_(grad), None, None, None


class _NativeGatedMask(torch.autograd.Function):
    """The same by the kernels, without setup_context as above."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, active: Tensor, gate: Tensor | None, receives: Tensor | None, strays: list[int]
    ) -> Tensor:
        ctx.save_for_backward(active, gate, receives)
        effective, count = masks.masked_product(weight, active)
        strays.append(count)
        return effective

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        active, gate, receives = ctx.saved_tensors
        if torch.is_grad_enabled() or not masks.fits(grad, active, receives):
            return *_GatedMask.backward(ctx, grad), None
        return masks.masked_product(grad, active, 0.0 if gate is None else gate.item(), receives)[0], None, None, None, None


# `apply` itself prepares for functorch, under which these two are never called
_native_soft_threshold: Any = super(torch.autograd.Function, _NativeSoftThreshold).apply
_native_gated_mask: Any = super(torch.autograd.Function, _NativeGatedMask).apply

# torch looks up this signature at every call; kept here, that takes no time
for _function in (_ShapedThreshold, _SharedThreshold, _GatedMask):
    _function.forward.__signature__ = inspect.signature(_function.forward)  # type: ignore[union-attr]


def _like(value: Tensor | float, weight: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.full((1,), value, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
