"""A linear layer computed the fastest way: on its non-zeros (a bitmask or indices for one token, terms for several),
natively dense for a few tokens, or by torch."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.kernels import inference_table as native
from autosparse.kernels.library import Engine
from autosparse.serving.choice import MOST_SPARSE_DENSITY, fastest
from autosparse.serving.native import LayerChoice, NativeModule, readable
from autosparse.serving.steps import INFINITY

MAX_TILE_VECTORS = 8
TILE_FLOATS = 1 << 17  # of the input: half a megabyte stays in the nearer caches
ROUNDS = 5


BITMASK, INDEXED, TERMS, DENSE, TORCH = "sparse, bitmask", "sparse, indexed", "sparse, terms", "dense", "torch"
MAX_INDEXED_COLUMNS = 1 << 16
# Weights that the caches hold from one call to the next; a larger model reads them from memory every time.
CACHE_BYTES = 16 << 20
FLUSH_FLOATS = 16 << 20
FEW_TOKENS = 64  # up to here the time goes into reading weights
ALIGNMENT = 64  # bytes, of vectors in scratch


def weights_in_caches(model: nn.Module) -> bool:
    """Whether a whole model's weights stay in the caches."""
    return sum(parameter.nbytes for parameter in model.parameters()) <= CACHE_BYTES


class PackedLinear(NativeModule):
    """max(low, min(high, x @ weight.T + bias + other)) for any number of tokens."""

    torch_way: ClassVar[str] = TORCH
    # seconds by way, for layers of one shape and density: measured once
    _seconds: ClassVar[dict[tuple[object, ...], dict[str, float]]] = {}

    def __init__(
        self,
        name: str,
        layer: nn.Linear,
        engine: Engine | None,
        threads: int,
        low: float = -INFINITY,
        high: float = INFINITY,
        *,
        join: Callable[[Tensor, Tensor], Tensor] = torch.add,
        rank: int | None = None,
    ) -> None:
        super().__init__(threads)
        self.name, self.engine, self.low, self.high = name, engine, low, high
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.join = join  # adds `other` in torch
        self.rank = rank  # dimensions of the input, where a batch norm was folded for them
        self.why_float = ""  # though int8 was asked for
        self.measured: dict[int, str] = {}  # by number of tokens
        self.tiles: dict[str, int] = {}  # by way, where widths are measured, too: see ByteLinear
        self._ways: dict[int, str] = {}  # the same for all numbers that were met
        self._weights: dict[tuple[str, int], Any] = {}  # packed, by way and width of a tile
        self._memory: list[Tensor] = []
        self._take_weight(layer)

    def _take_weight(self, layer: nn.Linear) -> None:
        self.weight, self.bias = layer.weight, layer.bias
        self.density = float((layer.weight != 0).sum()) / max(layer.weight.numel(), 1)
        # whether the native engine can compute it
        parameters = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
        self.usable = self.engine is not None and all(readable(p) and p.is_contiguous() and p.numel() for p in parameters)
        self._finish = native.Finish(None if layer.bias is None else layer.bias.data_ptr(), self.low, self.high)

    def layer_names(self) -> list[str]:
        return [self.name]

    def ways(self, tokens: int) -> list[str]:
        """How this number of tokens can be computed."""
        sparse = [TERMS]
        if tokens == 1:
            sparse = [BITMASK, INDEXED] if self.in_features <= MAX_INDEXED_COLUMNS else [BITMASK]
        is_sparse = self.usable and self.density <= MOST_SPARSE_DENSITY
        return sparse * is_sparse + [DENSE] * (self.usable and tokens <= FEW_TOKENS) + [TORCH]

    def measure(self, tokens: int, hot: bool) -> None:
        """Choose the fastest way for this number of tokens; with weights from the caches (hot) or from memory."""
        ways = self.ways(tokens)
        if len(ways) == 1 or tokens in self.measured:
            return
        shape = (self.out_features, self.in_features, round(self.density, 2))
        key = (*shape, tokens, self.threads, hot, self.engine and self.engine.instruction_set)
        if key not in self._seconds:
            x = torch.randn(tokens, self.in_features)
            flush = torch.empty(0 if hot or tokens > FEW_TOKENS else FLUSH_FLOATS)
            calls = {way: partial(self.compute, way, x, None) for way in ways}
            before = (lambda: flush.fill_(1.0)) if len(flush) else None
            self._seconds[key] = fastest(calls, self.threads, ROUNDS, before=before)
        seconds = self._seconds[key]
        self.use({**self.measured, tokens: min(ways, key=lambda way: seconds[way])})

    def use(self, ways: dict[int, str], tiles: dict[str, int] | None = None) -> bool:
        """Compute as it was measured before; False if that is impossible."""
        if tiles or not all(tokens > 0 and way in self.ways(tokens) for tokens, way in ways.items()):
            return False
        with self._lock:
            self.measured, self._ways = dict(ways), dict(ways)
        return True

    def chosen(self, tokens: int) -> str:
        """The way for this number of tokens: as measured, or as for the nearest number that was."""
        if tokens not in self._ways:
            with self._lock:
                self._ways[tokens] = self._nearest(tokens)
        return self._ways[tokens]

    def _nearest(self, tokens: int) -> str:
        ways = self.ways(tokens)
        near = min(self.measured, key=lambda count: max(count, tokens) / max(min(count, tokens), 1), default=None)
        way = ways[0] if near is None else self.measured[near]
        return way if way in ways else self._instead(way, ways)

    def _instead(self, way: str, ways: list[str]) -> str:
        """What is sparse for one number of tokens is sparse for others too, if not in the same form."""
        return ways[0] if way in (BITMASK, INDEXED, TERMS) else TORCH

    def compute(self, way: str, x: Tensor, other: Tensor | None) -> Tensor:
        return self.dense(x, other) if way == self.torch_way else self.natively(way, x, other)

    def forward(self, input: Tensor, other: Tensor | None = None) -> Tensor:
        if self._takes(input, other):
            return self.compute(self.chosen(input.numel() // self.in_features), input, other)
        return self.dense(input, other)

    def _takes(self, x: Tensor, other: Tensor | None) -> bool:
        """Whether native code can read these inputs; otherwise torch computes or refuses them."""
        if not (self.usable and readable(x) and x.dim() and x.shape[-1] == self.in_features and x.numel()):
            return False
        if self.rank is not None and x.dim() != self.rank:
            return False
        return other is None or (readable(other) and other.shape == (*x.shape[:-1], self.out_features))

    def dense(self, x: Tensor, other: Tensor | None) -> Tensor:
        return self._finished(F.linear(x, self.weight, self.bias), x, other)

    def _finished(self, result: Tensor, x: Tensor, other: Tensor | None) -> Tensor:
        """The products of x with what is added, within the bounds."""
        if self.rank is not None and result.dim() != self.rank:
            raise ValueError(
                f"{self.name} takes {self.rank}D input, as in deploy's example, since its batch norm is folded; "
                f"got {tuple(x.shape)}: deploy the model with an example of this shape"
            )
        bounded = (self.low, self.high) != (-INFINITY, INFINITY)
        if other is not None and (other.shape, other.dtype) != (result.shape, result.dtype):
            result = self.join(result, other)  # may be `other` itself, which is not ours to change
            return result.clamp(self.low, self.high) if bounded else result
        if other is not None:
            result = result + other
        return result.clamp_(self.low, self.high) if bounded else result

    def natively(self, way: str, x: Tensor, other: Tensor | None) -> Tensor:
        """On the non-zeros, or densely for a few tokens."""
        assert self.engine is not None
        tokens, table = x.numel() // self.in_features, self.engine.table
        result = x.new_empty((*x.shape[:-1], self.out_features))
        x = x.contiguous()
        if way == BITMASK and self.in_features % native.BITMASK_COLUMNS:
            x = F.pad(x, (0, -self.in_features % native.BITMASK_COLUMNS))
        other = None if other is None else other.contiguous()
        sources = x.data_ptr(), None if other is None else other.data_ptr()
        weight = self._weight(way, tokens)
        if way == TERMS:
            scratch = x.new_empty(table.linear_scratch(byref(weight)) * self.threads + ALIGNMENT // 4)
            aligned = scratch.data_ptr() + -scratch.data_ptr() % ALIGNMENT
            table.linear_many(byref(weight), tokens, self.threads, *sources, aligned, result.data_ptr())
        elif way == DENSE:
            table.linear_dense(byref(weight), tokens, self.threads, *sources, result.data_ptr())
        else:
            compute = table.linear_one if way == BITMASK else table.linear_indexed
            compute(byref(weight), self.threads, *sources, result.data_ptr())
        return result

    def operand(self, tokens: int, low: float = -INFINITY) -> Any:
        """The weight as the native engine takes it for this number of tokens, in the chosen way; dense instead of torch."""
        way = self.chosen(tokens)
        weight = self._weight(DENSE if way == TORCH else way, tokens)
        copied = type(weight).from_buffer_copy(weight)
        copied.finish.low = max(low, copied.finish.low)
        return copied

    def _weight(self, way: str, tokens: int) -> Any:
        """The packed weight."""
        key = way, self._width(way, tokens)
        if key not in self._weights:
            with self._lock:
                if key not in self._weights:
                    self._weights[key] = self._pack(*key)
        return self._weights[key]

    def _width(self, way: str, tokens: int) -> int:
        """Terms are for tiles of as many vectors as these tokens need, as far as a tile stays in cache."""
        vectors = 1
        if way == TERMS:
            assert self.engine is not None
            lanes = self.engine.lanes
            while vectors < min(MAX_TILE_VECTORS, tokens / lanes) and 2 * vectors * lanes * self.in_features <= TILE_FLOATS:
                vectors *= 2
        return vectors

    def _pack(self, way: str, vectors: int) -> Any:
        assert self.engine is not None
        weight, rows, columns = self.weight.detach(), self.out_features, self.in_features
        if way == DENSE:
            return native.DenseLinear(rows, columns, weight.data_ptr(), self._finish)
        if way == BITMASK:
            packed = native.pack_bitmask(weight, self.engine.lanes)
            return native.BitmaskLinear(rows, packed[1].shape[1], *self._addresses(*packed), self._finish)
        if way == INDEXED:
            return native.IndexedLinear(rows, *self._addresses(*native.pack_indexed(weight)), self._finish)
        terms = native.pack_terms(weight, torch.arange(columns) * vectors * self.engine.lanes)
        return native.TermLinear(rows, columns, vectors, *self._addresses(*terms), self._finish)

    def _addresses(self, *tensors: Tensor) -> list[int]:
        """Of tensors that live as long as this layer."""
        self._memory += tensors
        return [tensor.data_ptr() for tensor in tensors]

    def choice(self) -> LayerChoice:
        """How the measured numbers of tokens are computed."""
        ways = sorted(self.measured.items())
        how = ", ".join(f"{way} for {tokens}" for tokens, way in ways)
        reasons = [self._why_torch() if all(way == TORCH for _, way in ways) else "", self.why_float]
        reason = "; ".join(filter(None, reasons))
        return LayerChoice(self.name, "linear", self.weight.numel(), self.density, how or TORCH, reason=reason)

    def _why_torch(self) -> str:
        if self.engine is None:
            return "there is no native library"
        if not self.usable:
            return f"a weight of {tuple(self.weight.shape)} in {self.weight.dtype} has no kernel"
        return "too few zeros" if self.density > MOST_SPARSE_DENSITY else "torch was faster"

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, density={self.density:.3f}"
