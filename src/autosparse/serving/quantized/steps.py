"""A region in eight bits: the integers of its weights, and the scale and zero point of every value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from autosparse.quantization.affine import activation_parameters, quantize_weight, weight_scales
from autosparse.serving.steps import (
    ConvolutionStep,
    MeanStep,
    Origin,
    PoolStep,
    Region,
    Step,
    bounds_into_producer,
    merged_steps,
    sum_into_convolution,
)

Range = tuple[float, float]


@dataclass(frozen=True)
class Affine:
    """real = scale * (byte - zero_point)."""

    scale: float
    zero_point: int

    @classmethod
    def covering(cls, low: float, high: float) -> Affine:
        return cls(*activation_parameters(low, high))

    def quantize(self, x: Tensor) -> Tensor:
        """The nearest bytes, as the kernels round."""
        return torch.round(x / self.scale + self.zero_point).clamp(0, 255)

    def rounded(self, x: Tensor) -> Tensor:
        """What is left of a tensor as bytes."""
        return (self.quantize(x) - self.zero_point) * self.scale


@dataclass(frozen=True, eq=False)
class ByteRows:
    """A weight in int8: by output channel, what is served is `scales` times the integers, the model's own `plain_scales`."""

    integers: Tensor
    scales: Tensor
    plain_scales: Tensor  # negative where a folded norm turned the sign, 0 where it left nothing

    @classmethod
    def of(cls, weight: Tensor, origin: Origin | None) -> ByteRows:
        """The integers are those of the model's own weight, so that it can be rounded to them, saved, and give them again."""
        plain = weight if origin is None else origin.weight
        scales = weight_scales(plain)
        integers = quantize_weight(plain, scales)
        if origin is None:
            return cls(integers, scales, scales)
        signs = origin.factors.sign()
        served = (scales.double() * origin.factors.abs()).float().clamp_min(torch.finfo(torch.float32).tiny)
        turned = integers * signs.to(torch.int8).view(-1, *[1] * (integers.dim() - 1))
        return cls(turned, torch.where(signs == 0, 1.0, served), scales * signs.float())

    def plain_weight(self) -> Tensor:
        """The model's own weight, rounded."""
        return self.integers.float() * self.plain_scales.view(-1, *[1] * (self.integers.dim() - 1))


@dataclass(frozen=True, eq=False)
class QuantizedConvolution(ConvolutionStep):
    """A convolution whose weight holds int8 or bfloat16 numbers: real weight = scales * weight, by output channel."""

    scales: Tensor = field(kw_only=True)
    rows: ByteRows | None = field(default=None, kw_only=True)  # of int8

    @property
    def real_weight(self) -> Tensor:
        return self.weight.float() * self.scales.view(-1, 1, 1, 1)


@dataclass(frozen=True)
class QuantizedRegion:
    """A fused region with quantized convolutions, and how the bytes of its values are to be read."""

    region: Region
    affine: Mapping[int, Affine]
    precision: str = "int8"

    def rounded(self, x: Tensor, value: int) -> Tensor:
        """What is left of a tensor in the engine."""
        return self.affine[value].rounded(x) if self.precision == "int8" else x.bfloat16().float()


def fuse_bytes(region: Region) -> Region:
    """Bounds and sums move into the step before them; a depthwise convolution stays a step of its own."""
    steps = list(region.steps)
    for rule in (_bounds_but_not_of_pools, _sum_into_any, _bounds_but_not_of_pools):
        steps = merged_steps(steps, region, rule)
    return replace(region, steps=tuple(steps))


def _bounds_but_not_of_pools(step: Step, producer: Step) -> Step | None:
    """The largest of a window has the scale of its input, so it cannot be bounded."""
    return None if _picks_largest(producer) else bounds_into_producer(step, producer)


def _sum_into_any(step: Step, producer: Step) -> Step | None:
    return sum_into_convolution(step, producer, depthwise=True)


def _picks_largest(step: Step) -> bool:
    return isinstance(step, PoolStep) and step.largest


def values_to_observe(region: Region) -> set[int]:
    """The values whose ranges decide about scales: not what picks the largest of a window, nor what leaves as a float."""
    picked = {
        step.output for step in region.steps if isinstance(step, MeanStep) or (isinstance(step, PoolStep) and step.largest)
    }
    return ({value for step in region.steps for value in step.inputs} | set(region.outputs)) - picked


def with_corrections(region: Region, corrections: Mapping[int, Tensor]) -> Region:
    """The biases of convolutions, by what they make, with what eight bits take from their channels."""
    return replace(region, steps=tuple(_corrected(step, corrections.get(step.output)) for step in region.steps))


def _corrected(step: Step, correction: Tensor | None) -> Step:
    if correction is None or not isinstance(step, ConvolutionStep):
        return step
    return replace(step, bias=correction if step.bias is None else step.bias + correction)


def quantize(region: Region, ranges: Mapping[int, Range]) -> QuantizedRegion:
    """A fused region in eight bits; `ranges` gives the lowest and highest value of whatever is to be observed."""
    affine = {value: Affine.covering(*ranges[value]) for value in values_to_observe(region)}
    steps: list[Step] = []
    for step in region.steps:
        if _picks_largest(step):
            affine[step.output] = affine[step.inputs[0]]
        steps.append(quantized_convolution(step) if isinstance(step, ConvolutionStep) else step)
    return QuantizedRegion(replace(region, steps=tuple(steps)), affine)


def in_bfloat16(region: Region) -> QuantizedRegion:
    """A fused region in bfloat16, where numbers need no scale."""
    values = {value for step in region.steps for value in (*step.inputs, step.output)}
    steps = tuple(_halved(step) if isinstance(step, ConvolutionStep) else step for step in region.steps)
    return QuantizedRegion(replace(region, steps=steps), dict.fromkeys(values, Affine(1.0, 0)), "bfloat16")


def _halved(step: ConvolutionStep) -> QuantizedConvolution:
    return QuantizedConvolution(
        **_kept(step) | {"weight": step.weight.detach().bfloat16()}, scales=torch.ones(step.out_channels)
    )


def quantized_convolution(step: ConvolutionStep) -> QuantizedConvolution:
    """A convolution with the integers of its weight."""
    rows = ByteRows.of(step.weight, step.origin)
    return QuantizedConvolution(**_kept(step) | {"weight": rows.integers}, scales=rows.scales, rows=rows)


def _kept(step: ConvolutionStep) -> dict[str, Any]:
    """Everything but the weight, in memory of its own."""
    bias = None if step.bias is None else step.bias.detach().float().clone()
    return {part.name: getattr(step, part.name) for part in fields(step)} | {"bias": bias, "origin": None}


def why_not_bytes(step: Step) -> str | None:
    """Why a step cannot be computed in eight bits; None if it can."""
    if step.low > 0 or step.high < 0:
        return f"bounds of {step.low} to {step.high} leave out 0, which bytes must hold"
    if isinstance(step, ConvolutionStep) and not bool(torch.isfinite(step.weight).all()):
        return "its weight is not finite"
    return None
