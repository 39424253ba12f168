"""Between real numbers and the integers that stand for them: real = scale * (integer - zero point)."""

import math

import torch
from torch import Tensor

_SMALLEST = torch.finfo(torch.float32).tiny
ACTIVATION_LEVELS = 255
WEIGHT_LIMIT = 127


def activation_parameters(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point with which unsigned 8-bit integers cover low to high, and 0 exactly.

    The zero point is 0 when nothing is negative, as behind a ReLU. The scale is a float32 number.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"cannot quantize the range from {low} to {high}: both ends must be finite numbers")
    if low > high:
        raise ValueError(f"cannot quantize the empty range from {low} to {high}: the low end lies above the high end")
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        return 1.0, 0
    scale = max((high - low) / ACTIVATION_LEVELS, _SMALLEST)
    scale = float(torch.tensor(scale, dtype=torch.float32))
    return scale, min(ACTIVATION_LEVELS, round(-low / scale))


def weight_scales(weight: Tensor) -> Tensor:
    """One float32 scale per output channel (the first dimension) so that its largest magnitude becomes 127."""
    _check(weight)
    largest = weight.detach().float().flatten(1).abs().amax(1) if weight.numel() else weight.new_zeros(len(weight)).float()
    if not bool(torch.isfinite(largest).all()):
        raise ValueError("cannot quantize a weight that holds NaN or infinite values")
    return torch.where(largest > 0, (largest / WEIGHT_LIMIT).clamp_min(_SMALLEST), torch.ones_like(largest))


def quantize_weight(weight: Tensor, scales: Tensor) -> Tensor:
    """The nearest signed 8-bit integers, from -127 to 127, one scale per output channel. Zeros stay zeros."""
    _check(weight)
    levels = torch.round(weight.detach().float() / _by_channel(scales, weight))
    return levels.clamp_(-WEIGHT_LIMIT, WEIGHT_LIMIT).to(torch.int8)


def dequantize_weight(integers: Tensor, scales: Tensor) -> Tensor:
    """The float32 weight that the integers stand for."""
    if integers.dtype != torch.int8:
        raise ValueError(f"a quantized weight is int8, got {integers.dtype}")
    return integers.float() * _by_channel(scales, integers)


def _check(weight: Tensor) -> None:
    if not weight.is_floating_point() or weight.dim() < 2:
        raise ValueError(
            "only real weights with an output and an input dimension are quantized, "
            f"got {weight.dtype} of shape {tuple(weight.shape)}"
        )


def _by_channel(scales: Tensor, weight: Tensor) -> Tensor:
    if scales.shape != weight.shape[:1]:
        raise ValueError(
            f"a weight of shape {tuple(weight.shape)} needs {weight.shape[0]} scales, got shape {tuple(scales.shape)}"
        )
    return scales.float().view(-1, *[1] * (weight.dim() - 1))
