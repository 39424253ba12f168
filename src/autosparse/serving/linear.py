"""A linear layer computed the fastest way found: on its non-zeros (a bitmask or indices for one token, terms for several),
natively dense for a few, or by torch."""

from __future__ import annotations

from ctypes import byref, pointer
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.kernels import inference_table as native
from autosparse.kernels.library import Engine
from autosparse.serving.choice import MOST_SPARSE_DENSITY, fastest
from autosparse.serving.native import LayerChoice
from autosparse.serving.steps import INFINITY

MOST_TILE_VECTORS = 8
TILE_FLOATS = 1 << 17  # of the input: half a megabyte stays in the nearer caches
ROUNDS = 5


BITMASK, INDEXED, TERMS, DENSE, TORCH = "sparse, bitmask", "sparse, indexed", "sparse, terms", "dense", "torch"
MOST_INDEXED_COLUMNS = 1 << 16
# Weights that the caches hold from one call to the next; a larger model reads them from memory every time.
CACHE_BYTES = 16 << 20
FLUSH_FLOATS = 16 << 20
FEW_TOKENS = 64  # up to here the time goes into reading weights


def weights_in_caches(model: nn.Module) -> bool:
    """Whether a whole model's weights stay in the caches."""
    return sum(each.nbytes for each in model.parameters()) <= CACHE_BYTES


class PackedLinear(nn.Module):
    """max(low, min(high, x @ weight.T + bias + other)) for any number of tokens."""

    # seconds by way, for layers of one shape and density: measured once
    _known: ClassVar[dict[tuple[object, ...], dict[str, float]]] = {}

    def __init__(
        self,
        name: str,
        layer: nn.Linear,
        engine: Engine | None,
        threads: int,
        low: float = -INFINITY,
        high: float = INFINITY,
    ) -> None:
        super().__init__()
        self.name, self.engine, self.threads, self.low, self.high = name, engine, threads, low, high
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.density = float((layer.weight != 0).sum()) / max(layer.weight.numel(), 1)
        self._how: dict[int, str] = {}  # by number of tokens
        self._keep: list[object] = []
        self._many: dict[int, native.TermLinear] = {}
        self._finish = native.Finish(None if layer.bias is None else layer.bias.data_ptr(), low, high)
        self._usable = engine is not None and layer.weight.dtype == torch.float32 and layer.weight.is_contiguous()
        if self._usable:
            self._dense = pointer(
                native.DenseLinear(self.out_features, self.in_features, layer.weight.data_ptr(), self._finish)
            )
        if self._usable and self.density <= MOST_SPARSE_DENSITY:
            assert engine is not None
            row_start, bits, values = native.pack_bitmask(layer.weight.detach(), engine.lanes)
            self._keep += [row_start, bits, values]
            self._one = pointer(
                native.BitmaskLinear(
                    self.out_features, bits.shape[1], row_start.data_ptr(), bits.data_ptr(), values.data_ptr(), self._finish
                )
            )

    @property
    def packed(self) -> bool:
        return hasattr(self, "_one")

    def ways(self, tokens: int) -> list[str]:
        """How so many tokens can be computed."""
        alone = tokens == 1
        sparse = [BITMASK] + [INDEXED] * (self.in_features <= MOST_INDEXED_COLUMNS) if alone else [TERMS]
        return sparse * self.packed + [DENSE] * (self._usable and tokens <= FEW_TOKENS) + [TORCH]

    def measure(self, tokens: int, hot: bool) -> None:
        """Find the fastest way for so many tokens; with weights from the caches (hot) or from memory."""
        options = self.ways(tokens)
        if len(options) == 1 or tokens in self._how:
            return
        shape = (self.out_features, self.in_features, round(self.density, 2))
        key = (*shape, tokens, self.threads, hot, self.engine and self.engine.instruction_set)
        if key not in self._known:
            x = torch.randn(tokens, self.in_features)
            flush = torch.empty(0 if hot or tokens > FEW_TOKENS else FLUSH_FLOATS)
            calls = {way: partial(self.compute, way, x, None) for way in options}
            self._known[key] = fastest(calls, self.threads, ROUNDS, before=(lambda: flush.fill_(1.0)) if len(flush) else None)
        seconds = self._known[key]
        self._how[tokens] = min(options, key=lambda way: seconds[way])

    def chosen(self, tokens: int) -> str:
        """The way for so many tokens: as measured, or as for the nearest number that was."""
        if tokens not in self._how:
            near = min(self._how, key=lambda known: max(known, tokens) / max(min(known, tokens), 1), default=None)
            way = self._how[near] if near is not None else self.ways(tokens)[0]
            options = self.ways(tokens)
            # what is sparse for so many is sparse for others too, if not in the same form
            self._how[tokens] = way if way in options else options[0] if way in (BITMASK, INDEXED, TERMS) else TORCH
        return self._how[tokens]

    def compute(self, way: str, x: Tensor, other: Tensor | None) -> Tensor:
        return self.dense(x, other) if way == TORCH else self.natively(way, x, other)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        usable = self._usable and x.dtype == torch.float32 and x.device.type == "cpu"
        tokens = x.numel() // self.in_features if usable else 0
        if tokens and (other is None or other.shape == (*x.shape[:-1], self.out_features)):
            return self.compute(self.chosen(tokens), x, other)
        return self.dense(x, other)

    def dense(self, x: Tensor, other: Tensor | None) -> Tensor:
        result = F.linear(x, self.weight, self.bias)
        if other is not None:
            result = result + other
        bounded = (self.low, self.high) != (-INFINITY, INFINITY)
        return result.clamp_(self.low, self.high) if bounded else result

    def natively(self, way: str, x: Tensor, other: Tensor | None) -> Tensor:
        """On the non-zeros, or densely for a few tokens."""
        assert self.engine is not None
        if x.shape[-1] != self.in_features:
            raise ValueError(f"{self.name} takes {self.in_features} features, got {tuple(x.shape)}")
        x = x.contiguous()
        result = torch.empty((*x.shape[:-1], self.out_features))
        added = None if other is None else other.contiguous()
        at = None if added is None else added.data_ptr()
        tokens = x.numel() // self.in_features
        if way == DENSE:
            self.engine.table.linear_dense(self._dense, tokens, self.threads, x.data_ptr(), at, result.data_ptr())
            return result
        if way == BITMASK:
            if self.in_features % native.BITMASK_COLUMNS:
                x = F.pad(x, (0, -self.in_features % native.BITMASK_COLUMNS))
            self.engine.table.linear_one(self._one, self.threads, x.data_ptr(), at, result.data_ptr())
            return result
        if way == INDEXED:
            self.engine.table.linear_indexed(self._indexed(), self.threads, x.data_ptr(), at, result.data_ptr())
            return result
        weight = self._for_tokens(tokens)
        floats = self.engine.table.linear_scratch(byref(weight)) * self.threads
        scratch = torch.empty(floats + native.BITMASK_COLUMNS)
        # vectors in scratch are aligned
        begin = scratch.data_ptr() + -scratch.data_ptr() % 64
        self.engine.table.linear_many(pointer(weight), tokens, self.threads, x.data_ptr(), at, begin, result.data_ptr())
        return result

    def _for_tokens(self, tokens: int) -> native.TermLinear:
        """Terms for tiles as wide as these tokens need, as far as a tile stays in cache."""
        assert self.engine is not None
        vectors = 1
        while vectors < MOST_TILE_VECTORS and vectors * self.engine.lanes < tokens:
            if 2 * vectors * self.engine.lanes * self.in_features > TILE_FLOATS:
                break
            vectors *= 2
        return self._terms(vectors, vectors * self.engine.lanes)

    def _indexed(self) -> Any:
        """Values with their columns, for one token."""
        if not hasattr(self, "_indexed_pointer"):
            row_start, columns, values = native.pack_indexed(self.weight.detach())
            self._keep += [row_start, columns, values]
            self._indexed_pointer = pointer(
                native.IndexedLinear(
                    self.out_features, row_start.data_ptr(), columns.data_ptr(), values.data_ptr(), self._finish
                )
            )
        return self._indexed_pointer

    def _terms(self, vectors: int, width: int) -> native.TermLinear:
        if vectors not in self._many:
            row_start, terms = native.pack_terms(self.weight.detach(), torch.arange(self.in_features) * width)
            self._keep += [row_start, terms]
            self._many[vectors] = native.TermLinear(
                self.out_features, self.in_features, vectors, row_start.data_ptr(), terms.data_ptr(), self._finish
            )
        return self._many[vectors]

    def operand(self, tokens: int, low: float = -INFINITY) -> Any:
        """The weight as the native engine takes it for so many tokens, the way that is chosen; dense instead of torch."""
        way = self.chosen(tokens)
        if way == TERMS:
            kept: Any = self._for_tokens(tokens)
        else:
            kept = (self._one if way == BITMASK else self._indexed() if way == INDEXED else self._dense).contents
        found = type(kept).from_buffer_copy(kept)
        found.finish.low = max(low, found.finish.low)
        return found

    @property
    def usable(self) -> bool:
        """Whether the native engine can compute it."""
        return self._usable

    def choice(self) -> LayerChoice:
        """How the measured numbers of tokens are computed."""
        how = ", ".join(f"{way} for {tokens}" for tokens, way in sorted(self._how.items()))
        return LayerChoice(self.name, "linear", self.weight.numel(), self.density, how or TORCH)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, density={self.density:.3f}"

    def __deepcopy__(self, memo: object) -> PackedLinear:
        raise RuntimeError("a deployed model cannot be copied; deploy the plain model again")

    def __reduce__(self) -> str:
        raise RuntimeError("a deployed model cannot be pickled; save the plain model with autosparse.save_sparse")
