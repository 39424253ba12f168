"""The range of values that an activation takes over the calibration batches."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from autosparse.quantization.histogram import Histogram

RangeKind = Literal["minmax", "percentile", "mse"]
PERCENTILE = 99.99
_LEVELS = 255
_FRACTIONS = torch.arange(100, 9, -1, dtype=torch.float64) / 100


class Observer:
    """Sees the batches of one activation and says which range its 256 levels should cover.

    `minmax` covers every value, `percentile` all but the 0.01 % that lie farthest out on each side, and `mse` the range with
    the smallest mean squared error. The order of the batches does not matter.
    """

    def __init__(self, kind: RangeKind = "minmax") -> None:
        if kind not in get_args(RangeKind):
            raise ValueError(f"unknown kind of range {kind!r}: choose one of {', '.join(get_args(RangeKind))}")
        self.kind: RangeKind = kind
        self._low = math.inf
        self._high = -math.inf
        self._histogram = Histogram()

    def update(self, tensor: Tensor) -> None:
        """Add the values of one batch."""
        if tensor.numel() == 0:
            return
        values = tensor.detach().to(torch.float32).flatten()
        low, high = (float(value) for value in torch.aminmax(values))
        if math.isnan(low) or math.isnan(high):
            raise ValueError("the calibration data give NaN here: check the model's weights and the data")
        if math.isinf(low) or math.isinf(high):
            raise ValueError("the calibration data give infinite values here: check the model's weights and the data")
        self._low, self._high = min(self._low, low), max(self._high, high)
        if self.kind != "minmax":
            self._histogram.update(values)

    def range(self) -> tuple[float, float]:
        """The lowest and highest value to represent."""
        if self._low > self._high:
            raise ValueError("no values were seen, so there is no range: give at least one calibration batch that is not empty")
        match self.kind:
            case "minmax":
                return self._low, self._high
            case "percentile":
                return self._percentile()
        return self._least_squares()

    def _percentile(self) -> tuple[float, float]:
        low, high = self._histogram.quantiles(1 - PERCENTILE / 100, PERCENTILE / 100)
        return max(low, self._low), min(high, self._high)

    def _least_squares(self) -> tuple[float, float]:
        """Shrink one end after the other while that lowers the error; an end that is 0 stays."""
        values, counts = self._histogram.occupied()
        low, high = min(self._low, 0.0), max(self._high, 0.0)
        for _ in range(2):
            if high > 0:
                errors = _errors(values, counts, torch.full_like(_FRACTIONS, low), _FRACTIONS * max(self._high, 0.0))
                high = float(_FRACTIONS[errors.argmin()]) * self._high
            if low < 0:
                errors = _errors(values, counts, _FRACTIONS * self._low, torch.full_like(_FRACTIONS, high))
                low = float(_FRACTIONS[errors.argmin()]) * self._low
        return max(low, self._low), min(high, self._high)


def _errors(values: Tensor, counts: Tensor, lows: Tensor, highs: Tensor) -> Tensor:
    """The summed squared error of each range, rounding to 256 levels and clipping what lies outside."""
    scales = ((highs - lows) / _LEVELS)[:, None]
    zero_points = torch.round(-lows[:, None] / scales)
    levels = (torch.round(values / scales) + zero_points).clamp(0, _LEVELS)
    return ((((levels - zero_points) * scales - values) ** 2) * counts).sum(1)
