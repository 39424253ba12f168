"""A linear layer in eight bits: its input becomes bytes on the way in, its result is float32."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.kernels import byte_table as native
from autosparse.kernels.library import Engine
from autosparse.quantization.affine import dequantize_weight
from autosparse.serving.choice import fastest
from autosparse.serving.kinds import origin_of
from autosparse.serving.linear import ALIGNMENT, PackedLinear
from autosparse.serving.native import LayerChoice
from autosparse.serving.quantized.choice import WORTH_A_TRY, work
from autosparse.serving.quantized.operations import ByteProduct
from autosparse.serving.quantized.steps import Affine, ByteRows, Range
from autosparse.serving.steps import INFINITY

DOTS = "int8, dense"
QUADS = {block: "int8, quads" + (f" of {block} rows" if block > 1 else "") for block in native.BLOCKS}
TORCH = "torch, on the integers"
FEWEST_FOR_QUADS = 8  # tokens: fewer leave most of a vector empty
MOST_FOR_DOTS = 64
TILES = (1, 2, 4, 8)  # chunks of tokens at a time
ROUNDS = 5


class ByteLinear(PackedLinear):
    """max(low, min(high, bytes of x @ weight.T + bias + other)) for any number of tokens; holds no float32 weight."""

    torch_way = TORCH

    def __init__(
        self,
        name: str,
        layer: nn.Linear,
        engine: Engine,
        threads: int,
        input_range: Range,
        low: float = -INFINITY,
        high: float = INFINITY,
        *,
        join: Callable[[Tensor, Tensor], Tensor] = torch.add,
        rank: int | None = None,
        correction: Tensor | None = None,
    ) -> None:
        super().__init__(name, layer, engine, threads, low, high, join=join, rank=rank)
        if correction is not None:  # what the bias lacks in eight bits
            self.bias = correction if self.bias is None else self.bias + correction  # type: ignore[assignment]
        self.affine = Affine.covering(*input_range)
        self.error: float | None = None
        self._product = self._scaled()

    def _take_weight(self, layer: nn.Linear) -> None:
        self.rows = ByteRows.of(layer.weight, origin_of(layer))
        self.integers, self.scales = self.rows.integers, self.rows.scales
        self.bias = None if layer.bias is None else layer.bias.detach().float().clone()  # type: ignore[assignment]
        self.density = float((self.integers != 0).sum()) / max(self.integers.numel(), 1)
        self.usable = layer.weight.numel() > 0

    def _scaled(self) -> ByteProduct:
        """From sums of integers to real numbers: the zero point goes into the bias."""
        scale = self.scales.double() * self.affine.scale
        bias = -self.affine.zero_point * self.integers.double().sum(1) * scale
        if self.bias is not None:
            bias = bias + self.bias.double()
        return ByteProduct(self.integers, torch.zeros(1, self.in_features), scale, bias, native.BLOCKS)

    def measure_error(self, x: Tensor, layer: nn.Linear) -> None:
        """How far off the products are on an input: the difference's length over the expected length."""
        expected = F.linear(x, layer.weight, layer.bias)
        result = F.linear(self.affine.rounded(x), dequantize_weight(self.integers, self.scales), self.bias)
        self.error = float((result - expected).norm() / expected.norm().clamp_min(torch.finfo(torch.float32).tiny))

    def ways(self, tokens: int) -> list[str]:
        """How this number of tokens can be computed."""
        if not self.usable:
            return [TORCH]
        found = [DOTS] if tokens <= MOST_FOR_DOTS else []
        if tokens >= FEWEST_FOR_QUADS:
            costs = {block: work(self._product, block) for block in native.BLOCKS}
            found += [QUADS[block] for block, cost in costs.items() if cost <= WORTH_A_TRY * min(costs.values())]
        return found

    def measure(self, tokens: int, hot: bool) -> None:
        """Choose the fastest way for this number of tokens."""
        ways = self.ways(tokens)
        if tokens in self.measured:
            return
        best = ways[0]
        trials = [(way, chunks) for way in ways for chunks in self._possible_tiles(way, tokens)]
        if len(trials) > 1:
            x = torch.randn(tokens, self.in_features) * self.affine.scale * 32
            calls = {trial: partial(self._timed, *trial, x) for trial in trials}
            seconds = fastest(calls, self.threads, ROUNDS)
            for way, chunks in sorted(trials, key=lambda trial: -seconds[trial]):
                best, self.tiles[way] = way, chunks
            self._forget_packed()
        self.use({**self.measured, tokens: best})

    def use(self, ways: dict[int, str], tiles: dict[str, int] | None = None) -> bool:
        """Compute as it was measured before; False if that is impossible."""
        for way, chunks in (tiles or {}).items():
            known = [tokens for tokens in ways if way in self.ways(tokens)]
            if not any(chunks in self._possible_tiles(way, tokens) for tokens in known):
                return False
        self.tiles.update(tiles or {})
        return super().use(ways)

    def _possible_tiles(self, way: str, tokens: int) -> list[int]:
        if way == DOTS or self.engine is None:
            return [1]
        most = min(self.engine.bytes.max_chunks(_block(way)), -(-tokens // native.CHUNK_PIXELS))
        return sorted({min(chunks, most) for chunks in TILES})

    def _timed(self, way: str, chunks: int, x: Tensor) -> Tensor:
        self.tiles[way] = chunks
        return self.natively(way, x, None)

    def _forget_packed(self) -> None:
        """What was packed for measuring alone."""
        with self._lock:
            self._weights.clear()
            self._memory.clear()

    def _instead(self, way: str, ways: list[str]) -> str:
        return ways[-1]

    def dense(self, x: Tensor, other: Tensor | None) -> Tensor:
        """In torch, for what native code cannot read, with the same rounding."""
        weight = dequantize_weight(self.integers, self.scales)
        return self._finished(F.linear(self.affine.rounded(x) if x.is_floating_point() else x, weight, self.bias), x, other)

    def natively(self, way: str, x: Tensor, other: Tensor | None) -> Tensor:
        assert self.engine is not None
        tokens, table = x.numel() // self.in_features, self.engine.bytes.table
        result = x.new_empty((*x.shape[:-1], self.out_features))
        x = x.contiguous()
        other = None if other is None else other.contiguous()
        weight = self._weight(way, tokens)
        size = table.linear_scratch(byref(weight), tokens) * (1 if way == DOTS else self.threads)
        scratch = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        aligned = scratch.data_ptr() + -scratch.data_ptr() % ALIGNMENT
        compute = table.linear_dots if way == DOTS else table.linear_quads
        sources = x.data_ptr(), None if other is None else other.data_ptr()
        compute(byref(weight), tokens, self.threads, *sources, aligned, result.data_ptr())
        return result

    def _width(self, way: str, tokens: int) -> int:
        """Quads are for tiles of as many chunks as these tokens need."""
        if way == DOTS or self.engine is None:
            return 1
        most = self.engine.bytes.max_chunks(_block(way))
        return min(most, -(-tokens // native.CHUNK_PIXELS), self.tiles.get(way, TILES[-1]))

    def _pack(self, way: str, chunks: int) -> native.ByteLinear:
        product = self._product
        packed = native.ByteLinear(
            columns=self.in_features, inverse_scale=1.0 / self.affine.scale, zero_point=self.affine.zero_point,
            low=self.low, high=self.high, tile_chunks=chunks,
        )  # fmt: skip
        if way == DOTS:
            dense, scale, bias = native.pack_dots(product.weight), product.scale.float(), product.bias.float()
            packed.dense, scale_at, bias_at = self._addresses(dense, scale, bias)
            packed.weights = native.QuadRows(self.out_features, 1, None, None, scale_at, bias_at)
            return packed
        offsets = torch.arange(self.in_features)[None] * chunks * native.CHUNK_PIXELS
        packed.weights, memory = native.quad_rows(product.weight, offsets, product.scale, product.bias, _block(way))
        self._memory += memory
        return packed

    def choice(self) -> LayerChoice:
        """How the measured numbers of tokens are computed."""
        how = ", ".join(f"{way} for {tokens}" for tokens, way in sorted(self.measured.items()))
        low, high = -self.affine.zero_point * self.affine.scale, (255 - self.affine.zero_point) * self.affine.scale
        return LayerChoice(
            self.name, "linear", self.integers.numel(), self.density, how or "int8",
            precision="int8", range=(low, high), error=self.error,
        )  # fmt: skip


def _block(way: str) -> int:
    return next(block for block, name in QUADS.items() if name == way)
