"""The equations: soft threshold with annealed gradient, mask with gated gradient, power reparametrisation."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

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
    given = _like(threshold, weight), _like(gate, weight), None if reach is None else _like(reach, weight)
    return counted_soft_threshold(weight, *given)[0]


def counted_soft_threshold(weight: Tensor, threshold: Tensor, gate: Tensor, reach: Tensor | None) -> tuple[Tensor, int | None]:
    """The same, and how many weights it leaves, where that is known without another pass over them."""
    if native.fits(weight, threshold, gate, reach):
        effective, count = _NativeSoftThreshold.apply(weight, threshold, gate, reach)  # type: ignore[no-untyped-call]
        return effective, count
    return _SoftThreshold.apply(weight, threshold, gate, reach), None  # type: ignore[no-untyped-call]


def gated_mask(weight: Tensor, active: Tensor, gate: Tensor | float | None = None, receives: Tensor | None = None) -> Tensor:
    """w * active for a mask from outside; pruned weights receive gate * G, only where `receives` if that is given.

    A gate of None is closed for good: as 0, and cheaper.
    """
    opening = None if gate is None else _like(gate, weight)
    effective: Tensor = _GatedMask.apply(weight, active, opening, receives)  # type: ignore[no-untyped-call]
    return effective


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


class _SoftThreshold(torch.autograd.Function):
    @staticmethod
    def forward(weight: Tensor, threshold: Tensor, gate: Tensor, reach: Tensor | None) -> Tensor:
        bound = threshold.to(weight.dtype).clamp_min(0)
        return weight - torch.minimum(torch.maximum(weight, -bound), bound)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        weight, threshold, gate, reach = ctx.saved_tensors
        receives = None if reach is None else weight.abs() >= reach.to(weight.dtype)
        active = weight.abs().gt_(threshold.to(weight.dtype).clamp_min(0))
        scaled = _gradient_map(active, gate, receives).mul_(grad)
        if not ctx.needs_input_grad[1]:
            return scaled, None, None, None
        signed = weight.sign().mul_(scaled)
        if threshold.numel() == 1:
            return scaled, -signed.sum(dtype=threshold.dtype).reshape(threshold.shape), None, None
        return scaled, -signed.to(threshold.dtype).sum_to_size(threshold.shape), None, None


class _NativeSoftThreshold(torch.autograd.Function):
    """The same by the kernels; torch calls a function without setup_context, which only functorch needs, much faster."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, threshold: Tensor, gate: Tensor, reach: Tensor | None) -> tuple[Tensor, int]:
        ctx.save_for_backward(weight, threshold, gate, reach)
        return native.soft_threshold(weight, max(threshold.item(), 0.0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, Tensor | None, None, None]:
        if torch.is_grad_enabled() or not is_eager_memory(grad):  # gradients of gradients, and traces, need torch's operations
            return _SoftThreshold.backward(ctx, grad)
        weight, threshold, gate, reach = ctx.saved_tensors
        bound, bar = max(threshold.item(), 0.0), None if reach is None else reach.item()
        scaled, total = native.soft_threshold_gradients(weight, grad, bound, gate.item(), bar)
        return scaled, torch.full_like(threshold, -total), None, None


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


# torch looks up this signature at every call; kept here, that takes no time
for _function in (_SoftThreshold, _GatedMask):
    _function.forward.__signature__ = inspect.signature(_function.forward)  # type: ignore[union-attr]


def _like(value: Tensor | float, weight: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    return torch.full((1,), value, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
