"""Whether a model has been trained before: fresh weights are independent draws, trained ones are not."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor, nn

CHANNELS, WEIGHTS = 8, 3  # channels, and weights in each, from which on their sizes can be compared
FAR = 8.0  # standard deviations: fresh networks stay below 4, a hundred steps of training lead far above 20


def is_trained(model: nn.Module, weights: Iterable[Tensor]) -> bool:
    """Whether the channels of a weight differ more in size than chance allows, or a norm's scales differ from one another."""
    return any(_scales_differ(module) for module in model.modules()) or any(
        _excess(weight, dim) > FAR for weight in weights for dim in range(min(2, weight.dim()))
    )


def _scales_differ(module: nn.Module) -> bool:
    """Only norms have a one-dimensional `weight`; it starts as all ones or all zeros."""
    scale = module._parameters.get("weight")
    return scale is not None and scale.dim() == 1 and scale.numel() > 1 and bool((scale != scale[0]).any())


def _excess(weight: Tensor, dim: int) -> float:
    """By how many standard deviations the mean squares of channels vary more than those of independent draws would."""
    channels = weight.detach().float().movedim(dim, 0).flatten(1)
    count, size = channels.shape
    if count < CHANNELS or size < WEIGHTS:
        return 0.0
    squares = channels.square()
    mean = float(squares.mean())
    spread = float(squares.var()) / size  # of a channel's mean, if its weights are drawn alike
    if spread <= 1e-3 * mean**2 / size:  # weights of one size, such as random signs
        return 0.0
    deviation = math.sqrt((2 + 12 / size) / count)  # of a variance; sums of few squares have long tails
    return (float(squares.mean(1).var()) / spread - 1) / deviation
