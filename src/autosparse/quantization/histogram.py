"""A histogram whose range doubles when needed, so that the order of the batches does not matter."""

import math

import torch
from torch import Tensor

BINS = 4096


class Histogram:
    """Counts of positive and of negative values in equal bins up to a power of two, and of zeros."""

    def __init__(self) -> None:
        self._exponent: int | None = None
        self._sides = torch.zeros(2, BINS, dtype=torch.int64)
        self._zeros = 0

    def update(self, values: Tensor) -> None:
        """Count finite float32 values."""
        values = values.detach().to("cpu", torch.float64).flatten()
        self._zeros += int((values == 0).sum())
        largest = float(values.abs().max()) if values.numel() else 0.0
        if largest == 0:
            return
        self._widen(math.frexp(largest)[1])
        assert self._exponent is not None
        for side, part in enumerate((values[values > 0], -values[values < 0])):
            bins = torch.floor(torch.ldexp(part, torch.tensor(-self._exponent)) * BINS).long()
            self._sides[side] += torch.bincount(bins.clamp_(max=BINS - 1), minlength=BINS)

    def _widen(self, exponent: int) -> None:
        """Make room for values below 2 ** exponent by merging neighbouring bins."""
        if self._exponent is None:
            self._exponent = exponent
        doublings = exponent - self._exponent
        if doublings <= 0:
            return
        merged = torch.zeros_like(self._sides)
        merged.index_add_(1, torch.arange(BINS) >> min(doublings, 62), self._sides)
        self._sides, self._exponent = merged, exponent

    def occupied(self) -> tuple[Tensor, Tensor]:
        """The centres of the bins that hold something, in ascending order, and their counts, as float64."""
        width = math.ldexp(1.0, (self._exponent or 0)) / BINS
        centres = (torch.arange(BINS, dtype=torch.float64) + 0.5) * width
        zero = torch.zeros(1, dtype=torch.float64)
        values = torch.cat([-centres.flip(0), zero, centres])
        counts = torch.cat([self._sides[1].flip(0), torch.tensor([self._zeros]), self._sides[0]])
        present = counts > 0
        return values[present], counts[present].double()

    def quantiles(self, *fractions: float) -> tuple[float, ...]:
        """The smallest bin centre with at least this fraction of all values at or below it, for each fraction."""
        values, counts = self.occupied()
        running = counts.cumsum(0)
        wanted = torch.tensor(fractions, dtype=torch.float64) * running[-1]
        places = torch.searchsorted(running, wanted).clamp_(max=len(values) - 1)
        return tuple(float(value) for value in values[places])
