"""A quantized region in torch, for inputs that the engine's layout cannot hold: the same rounding, in floats."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.serving.quantized.steps import QuantizedConvolution, QuantizedRegion
from autosparse.serving.steps import ConcatStep, MeanStep, PoolStep, Step


class EmulatedRegion(nn.Module):
    """Holds the integers alone: weights become floats for the time of a call."""

    def __init__(self, quantized: QuantizedRegion) -> None:
        super().__init__()
        self.quantized = quantized

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        region, rounded = self.quantized.region, self.quantized.rounded
        values = {value: rounded(x, value) for value, x in zip(region.inputs, inputs, strict=True)}
        for step in region.steps:
            result = _real(step, [values[value] for value in step.inputs]).clamp(step.low, step.high)
            values[step.output] = result if isinstance(step, MeanStep) else rounded(result, step.output)
        outputs = tuple(values[value] for value in region.outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def _real(step: Step, sources: list[Tensor]) -> Tensor:
    first = sources[0]
    if isinstance(step, QuantizedConvolution):
        result = F.conv2d(first, step.real_weight, step.bias, step.stride, step.padding, step.dilation, step.groups)
        return result + sources[1] if len(sources) > 1 else result
    if isinstance(step, PoolStep):
        pool = F.max_pool2d if step.largest else F.avg_pool2d
        return pool(first, step.kernel, step.stride, step.padding)
    if isinstance(step, ConcatStep):
        return torch.cat(sources, 1)
    if isinstance(step, MeanStep):
        return first.mean((2, 3), keepdim=True)
    return first + sources[1] if len(sources) > 1 else first
