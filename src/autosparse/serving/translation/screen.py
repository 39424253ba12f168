"""Which output of a large dense linear layer is the largest: all rows are estimated from eight-bit copies of the weights,
and only those that could be the largest are computed. The answer is exact."""

from __future__ import annotations

from ctypes import pointer
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from autosparse.kernels import inference_table as native
from autosparse.serving.linear import DENSE, TORCH, PackedLinear

LARGEST_BYTE = 127
FEWEST_ROWS = 1024  # with fewer the whole layer is computed as quickly
ROUNDING = 2.0**-22  # of a product of two floats and its sum, for every column


class Screen:
    """The largest output of a layer whose weights are finite."""

    def __init__(self, layer: PackedLinear) -> None:
        assert layer.engine is not None
        self.layer = layer
        weight = layer.weight.detach()
        columns = weight.shape[1]
        scales = weight.abs().amax(1).clamp_min(1e-30) / LARGEST_BYTE
        coarse = F.pad((weight / scales[:, None]).round_().to(torch.int8), (0, -columns % native.BITMASK_COLUMNS))
        missed = (weight.double() - coarse[:, :columns].double() * scales.double()[:, None]).norm(dim=1)
        errors = (missed + columns * ROUNDING * weight.double().norm(dim=1)).float() * (1 + 2.0**-20)
        self._memory = (coarse, scales, errors)
        places = (tensor.data_ptr() for tensor in self._memory)
        self._screened = pointer(native.ScreenedLinear(layer.operand(1), coarse.shape[1], *places))

    @staticmethod
    def suits(layer: object) -> TypeGuard[PackedLinear]:
        """Whether it is a large dense layer, finite, without bias and activation."""
        return (
            isinstance(layer, PackedLinear)
            and layer.usable
            and layer.out_features >= FEWEST_ROWS
            and layer.chosen(1) in (DENSE, TORCH)
            and (layer.low, layer.high) == (-native.INFINITY, native.INFINITY)
            and bool(layer.weight.isfinite().all())
            and layer.bias is None
        )

    def largest(self, x: Tensor, estimates: Tensor) -> Tensor | None:
        """The rows (tokens,) for x (tokens, columns), followed in memory by 16 zeros; None if x is not finite.

        `estimates` is working memory, one float per token and row.
        """
        layer = self.layer
        assert layer.engine is not None
        rows = torch.empty(len(x), dtype=torch.int64)
        layer.engine.table.largest_rows(
            self._screened, len(x), layer.threads, x.data_ptr(), estimates.data_ptr(), rows.data_ptr()
        )
        return None if rows[0] < 0 else rows
