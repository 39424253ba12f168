"""Our Transformer's decoder as one native call for a token: norms, packed linear layers, attention over kept keys."""

from __future__ import annotations

from ctypes import byref, pointer

import torch
from torch import Tensor, nn

from autosparse.kernels import inference as native
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


def can_run(model: nn.Module) -> bool:
    """Whether it is our Transformer to the letter, with every linear layer of the decoder packed."""
    if type(model) is not Transformer or not all(type(layer) is DecoderLayer for layer in model.decoder):
        return False
    linears = [part for part in model.decoder.modules() if isinstance(part, nn.Linear | PackedLinear)]
    return all(isinstance(each, PackedLinear) and each.usable for each in linears)


class DecoderProgram:
    """The decoder for so many sentences at a time, with room for so many words and positions of each."""

    def __init__(self, model: Transformer, engine: native.Engine, threads: int, batch: int, words: int, positions: int) -> None:
        self.engine, self.batch, self.words, self.positions = engine, batch, words, positions
        self.layers = [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]
        size, self.heads = model.size, self.layers[0].attention.heads
        self.kept = torch.empty(len(self.layers), 2, positions, batch, size)  # keys and values of earlier tokens
        self.memory = torch.empty(len(self.layers), 2, words, batch, size)  # of the sentences to translate
        self.seen = torch.zeros(batch, positions, dtype=torch.uint8)
        self.memory_seen = torch.zeros(batch, words, dtype=torch.uint8)
        self._buffers: list[Tensor] = []
        self._operands: list[object] = []
        self._operations: list[native.DecoderOp] = []
        self._scratch_floats = max(words, positions)
        self.states = self._state(size)  # what goes in: (batch, size)
        result = self.states
        for place, layer in enumerate(self.layers):
            self._layer(place, layer)
        if isinstance(model.decoder_norm, nn.LayerNorm):
            result = self._norm(model.decoder_norm, self.states, self._state(size))
        self.result = result  # what the vocabulary layer reads: (batch, size)
        self._program = (native.DecoderOp * len(self._operations))(*self._operations)
        self._cross = [each for each in self._program if each.seen == self.memory_seen.data_ptr()]
        per_thread = -(-self._scratch_floats // VECTOR_FLOATS) * VECTOR_FLOATS
        scratch = torch.empty(per_thread * threads + VECTOR_FLOATS)
        self._buffers.append(scratch)
        aligned = scratch.data_ptr() + -scratch.data_ptr() % (4 * VECTOR_FLOATS)
        self._call = native.DecoderCall(batch, 0, threads, aligned, per_thread)

    def fits(self, batch: int, words: int, positions: int) -> bool:
        return batch == self.batch and words <= self.words and positions <= self.positions

    def read(self, states: Tensor, seen: Tensor) -> None:
        """New sentences: the encoder's states (batch, words, size); `seen` is True where there is a word."""
        words = states.shape[1]
        for place, layer in enumerate(self.layers):
            for side, linear in enumerate((layer.cross_attention.key, layer.cross_attention.value)):
                self.memory[place, side, :words] = linear(states).transpose(0, 1)
        self.memory_seen[:, :words] = seen
        for each in self._cross:
            each.positions = words

    def run(self, position: int) -> None:
        """From `states` to `result`, keeping this position's keys and values."""
        self._call.position = position
        self.engine.table.decode(self._program, len(self._program), byref(self._call))

    def _layer(self, place: int, layer: DecoderLayer) -> None:
        keys, values = self.kept[place]
        size = self.states.shape[1]
        inner = self._enter(layer.attention_residual)
        queries = self._state(size)
        self._linear(layer.attention.query, inner, queries, wait=False)
        self._linear(layer.attention.key, inner, keys, wait=False, output_step=self.batch * size)
        self._linear(layer.attention.value, inner, values, output_step=self.batch * size)
        self._attend(layer.attention_residual, layer.attention, queries, keys, values, self.seen)
        inner = self._enter(layer.cross_attention_residual)
        self._linear(layer.cross_attention.query, inner, queries)
        memory = self.memory[place]
        self._attend(layer.cross_attention_residual, layer.cross_attention, queries, memory[0], memory[1], self.memory_seen)
        inner = self._enter(layer.feed_forward_residual)
        expand = layer.feed_forward.expand
        hidden = self._state(expand.out_features)
        self._linear(expand, inner, hidden, low=0.0)
        self._leave(layer.feed_forward_residual, layer.feed_forward.contract, hidden)

    def _enter(self, residual: Residual) -> Tensor:
        """What a branch reads."""
        return self._norm(residual.norm, self.states, self._state(self.states.shape[1])) if residual.before else self.states

    def _leave(self, residual: Residual, linear: nn.Module, branch: Tensor) -> None:
        """The branch's last layer with the sum, normalised here in the post-norm form."""
        if residual.before:
            self._linear(linear, branch, self.states, other=self.states)
            return
        total = self._state(self.states.shape[1])
        self._linear(linear, branch, total, other=self.states)
        self._norm(residual.norm, total, self.states)

    def _attend(
        self, residual: Residual, attention: Attention, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor
    ) -> None:
        found = self._state(queries.shape[1])
        places = {"input": queries, "output": found, "keys": keys, "values": values, "seen": seen}
        self._add(
            native.ATTEND, places, seen_stride=seen.shape[1], heads=attention.heads, width=queries.shape[1] // attention.heads
        )
        self._leave(residual, attention.out, found)

    def _linear(
        self,
        linear: nn.Module,
        given: Tensor,
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
        places = {"input": given, "output": output} | ({} if other is None else {"other": other})
        self._add(native.LINEAR, places, wait=wait, output_step=output_step, **{OPERANDS[type(operand)]: pointer(operand)})
        if isinstance(operand, native.TermLinear):
            self._scratch_floats = max(self._scratch_floats, self.engine.table.linear_scratch(byref(operand)))

    def _norm(self, norm: nn.LayerNorm, given: Tensor, output: Tensor) -> Tensor:
        places = {"input": given, "output": output, "scale": norm.weight, "shift": norm.bias}
        self._add(native.NORMALISE, places, columns=given.shape[1], epsilon=norm.eps)
        return output

    def _add(self, kind: int, places: dict[str, Tensor], wait: bool = True, **fields: object) -> None:
        found = native.DecoderOp(kind=kind, wait=int(wait))
        for name, tensor in places.items():
            setattr(found, name, tensor.data_ptr())
        for name, value in fields.items():
            setattr(found, name, value)
        self._operations.append(found)

    def _state(self, columns: int) -> Tensor:
        whole = torch.zeros(self.batch * columns + VECTOR_FLOATS)
        self._buffers.append(whole)
        return whole[: self.batch * columns].view(self.batch, columns)
