"""Our Transformer's decoder as one native call per token: norms, packed linear layers, attention over cached keys."""

from __future__ import annotations

from ctypes import byref, pointer
from typing import TypeGuard

import torch
from torch import Tensor, nn

from autosparse.kernels import inference_table as native
from autosparse.kernels.library import Engine
from autosparse.models.attention import Attention
from autosparse.models.transformer import DecoderLayer, Residual, Transformer
from autosparse.serving.linear import PackedLinear
from autosparse.serving.steps import INFINITY

VECTOR_FLOATS = 16  # of the widest vectors; as many zeros lie after a state, since a bitmask reads whole words

# fields of a DecoderOp
OPERANDS = {
    native.BitmaskLinear: "bitmask",
    native.IndexedLinear: "indexed",
    native.DenseLinear: "dense",
    native.TermLinear: "terms",
}


def can_run(model: nn.Module) -> TypeGuard[Transformer]:
    """Whether it is exactly our Transformer, with every linear layer of the decoder packed."""
    if type(model) is not Transformer or not all(type(layer) is DecoderLayer for layer in model.decoder):
        return False
    linears = [part for part in model.decoder.modules() if isinstance(part, nn.Linear | PackedLinear)]
    return all(isinstance(linear, PackedLinear) and linear.usable for linear in linears)


class DecoderProgram:
    """A decoder for a fixed batch size, with capacity for `words` to translate and `positions` to write."""

    def __init__(self, model: Transformer, engine: Engine, threads: int, batch: int, words: int, positions: int) -> None:
        self.engine, self.batch, self.words, self.positions = engine, batch, words, positions
        self.layers = model.decoder_layers()
        size = model.size
        # keys and values: of earlier tokens, and of the sentences to translate
        self.past = torch.empty(len(self.layers), 2, positions, batch, size, dtype=torch.float32)
        self.memory = torch.empty(len(self.layers), 2, words, batch, size, dtype=torch.float32)
        self.visible = torch.zeros(batch, positions, dtype=torch.uint8)
        self.memory_visible = torch.zeros(batch, words, dtype=torch.uint8)
        self._buffers: list[Tensor] = []
        self._operands: list[object] = []
        self._operations: list[native.DecoderOp] = []
        self._scratch_floats = max(words, positions)
        self.states = self._state(size)  # what goes in: (batch, size)
        for layer, past, memory in zip(self.layers, self.past, self.memory, strict=True):
            self._layer(layer, past, memory)
        self.result = self.states  # what the vocabulary layer reads: (batch, size)
        if isinstance(model.decoder_norm, nn.LayerNorm):
            self.result = self._norm(model.decoder_norm, self.states, self._state(size))
        self._program = (native.DecoderOp * len(self._operations))(*self._operations)
        self._cross = [op for op in self._program if op.seen == self.memory_visible.data_ptr()]
        per_thread = -(-self._scratch_floats // VECTOR_FLOATS) * VECTOR_FLOATS
        scratch = torch.empty(per_thread * threads + VECTOR_FLOATS, dtype=torch.float32)
        self._buffers.append(scratch)
        aligned = scratch.data_ptr() + -scratch.data_ptr() % (4 * VECTOR_FLOATS)
        self._call = native.DecoderCall(batch, 0, threads, aligned, per_thread)

    def fits(self, batch: int, words: int, positions: int) -> bool:
        return batch == self.batch and words <= self.words and positions <= self.positions

    def read(self, states: Tensor, is_word: Tensor) -> None:
        """New sentences: the encoder's states (batch, words, size); `is_word` is False at filler."""
        words = states.shape[1]
        for layer, memory in zip(self.layers, self.memory, strict=True):
            for linear, target in zip((layer.cross_attention.key, layer.cross_attention.value), memory, strict=True):
                target[:words] = linear(states).transpose(0, 1)
        self.memory_visible[:, :words] = is_word
        for op in self._cross:
            op.positions = words

    def run(self, position: int) -> None:
        """From `states` to `result`, caching this position's keys and values."""
        self._call.position = position
        self.engine.table.decode(self._program, len(self._program), byref(self._call))

    # `DecoderLayer.step` says what a layer computes for one token, and the methods below translate it call by call: `_enter`
    # and `_leave` are those of `Residual`, `_attend` is `Attention`. It is translated, not traced, because the native code
    # writes keys and values straight into their cache, adds the residual inside the last linear layer of a branch, and does
    # not wait for other threads between query, key and value. deploy compares the logits of the two.

    def _layer(self, layer: DecoderLayer, past: Tensor, memory: Tensor) -> None:
        size = self.states.shape[1]
        inner = self._enter(layer.attention_residual)
        queries = self._state(size)
        self._linear(layer.attention.query, inner, queries, wait=False)
        self._linear(layer.attention.key, inner, past[0], wait=False, output_step=self.batch * size)
        self._linear(layer.attention.value, inner, past[1], output_step=self.batch * size)
        self._attend(layer.attention_residual, layer.attention, queries, past, self.visible)
        inner = self._enter(layer.cross_attention_residual)
        self._linear(layer.cross_attention.query, inner, queries)
        self._attend(layer.cross_attention_residual, layer.cross_attention, queries, memory, self.memory_visible)
        inner = self._enter(layer.feed_forward_residual)
        hidden = self._state(layer.feed_forward.expand.out_features)
        self._linear(layer.feed_forward.expand, inner, hidden, low=0.0)
        self._leave(layer.feed_forward_residual, layer.feed_forward.contract, hidden)

    def _enter(self, residual: Residual) -> Tensor:
        return self._norm(residual.norm, self.states, self._state(self.states.shape[1])) if residual.before else self.states

    def _leave(self, residual: Residual, linear: nn.Module, branch: Tensor) -> None:
        """The branch's last layer together with the sum."""
        if residual.before:
            self._linear(linear, branch, self.states, other=self.states)
            return
        total = self._state(self.states.shape[1])
        self._linear(linear, branch, total, other=self.states)
        self._norm(residual.norm, total, self.states)

    def _attend(
        self, residual: Residual, attention: Attention, queries: Tensor, keys_and_values: Tensor, visible: Tensor
    ) -> None:
        size = queries.shape[1]
        attended, (keys, values) = self._state(size), keys_and_values
        tensors = {"input": queries, "output": attended, "keys": keys, "values": values, "seen": visible}
        self._add(native.ATTEND, tensors, seen_stride=visible.shape[1], heads=attention.heads, width=size // attention.heads)
        self._leave(residual, attention.out, attended)

    def _linear(
        self,
        linear: nn.Module,
        source: Tensor,
        output: Tensor,
        *,
        other: Tensor | None = None,
        low: float = -INFINITY,
        wait: bool = True,
        output_step: int = 0,
    ) -> None:
        assert isinstance(linear, PackedLinear)
        operand = linear.operand(self.batch, low)
        self._operands.append(operand)
        tensors = {"input": source, "output": output} | ({} if other is None else {"other": other})
        self._add(native.LINEAR, tensors, wait=wait, output_step=output_step, **{OPERANDS[type(operand)]: pointer(operand)})
        if isinstance(operand, native.TermLinear):
            self._scratch_floats = max(self._scratch_floats, self.engine.table.linear_scratch(byref(operand)))

    def _norm(self, norm: nn.LayerNorm, source: Tensor, output: Tensor) -> Tensor:
        tensors = {"input": source, "output": output, "scale": norm.weight, "shift": norm.bias}
        self._add(native.NORMALISE, tensors, columns=source.shape[1], epsilon=norm.eps)
        return output

    def _add(self, kind: int, tensors: dict[str, Tensor], wait: bool = True, **fields: object) -> None:
        op = native.DecoderOp(kind=kind, wait=int(wait))
        for name, tensor in tensors.items():
            setattr(op, name, tensor.data_ptr())
        for name, value in fields.items():
            setattr(op, name, value)
        self._operations.append(op)

    def _state(self, columns: int) -> Tensor:
        memory = torch.zeros(self.batch * columns + VECTOR_FLOATS, dtype=torch.float32)
        self._buffers.append(memory)
        return memory[: self.batch * columns].view(self.batch, columns)
