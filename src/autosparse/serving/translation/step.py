"""Greedy translation with our Transformer, token by token: keys and values of earlier tokens are kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autosparse.models.attention import Attention
from autosparse.models.transformer import DecoderLayer, Transformer, sinusoidal_positions


class Step(nn.Module):
    """One token through the decoder: plain tensors in and out, so that it can be exported as well as run."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model
        self.layers = nn.ModuleList(layer for layer in model.decoder if isinstance(layer, DecoderLayer))

    def memory(self, states: Tensor) -> Tensor:
        """Keys and values of the encoder's states: (layers, 2, batch, heads, length, size of a head)."""
        return torch.stack([torch.stack(keys_and_values(layer.cross_attention, states)) for layer in self.layers])  # type: ignore[arg-type]

    def forward(
        self, token: Tensor, position: Tensor, past: Tensor, memory: Tensor, seen: Tensor, memory_seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits (batch, vocabulary) after `token` (batch, 1), and the keys and values with it added to `past`.

        `seen` (batch, 1, 1, length) is True where an earlier token or this one may be looked at, `memory_seen` likewise.
        """
        states = self.model.embedding(token) * self.model.size**0.5 + position
        kept = []
        for place, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            inner = layer.attention_residual.enter(states)
            keys, values = keys_and_values(layer.attention, inner)
            keys, values = torch.cat((past[place, 0], keys), dim=2), torch.cat((past[place, 1], values), dim=2)
            kept.append(torch.stack((keys, values)))
            states = layer.attention_residual.leave(states, layer.attention.attend(inner, keys, values, seen))
            inner = layer.cross_attention_residual.enter(states)
            seen_there = layer.cross_attention.attend(inner, memory[place, 0], memory[place, 1], memory_seen)
            states = layer.cross_attention_residual.leave(states, seen_there)
            inner = layer.feed_forward_residual.enter(states)
            states = layer.feed_forward_residual.leave(states, layer.feed_forward(inner))
        logits: Tensor = self.model.output(self.model.decoder_norm(states[:, -1]))
        return logits, torch.stack(kept)


def keys_and_values(attention: Attention, states: Tensor) -> tuple[Tensor, Tensor]:
    return attention.split(attention.key(states)), attention.split(attention.value(states))


@torch.no_grad()
def greedy(model: Transformer, source: Tensor, start_id: int, end_id: int, max_length: int = 128) -> Tensor:
    """What `Transformer.generate` gives, at the cost of one token a step instead of all so far."""
    if max_length < 1:
        raise ValueError(f"max_length must be 1 or more, got {max_length}")
    if model.training:
        raise RuntimeError("greedy needs the model in evaluation mode (dropout off): call model.eval() first")
    step = Step(model).eval()
    memory = step.memory(model.encode(source))
    return loop(step, memory, source, model, start_id, end_id, max_length)


def loop(
    step: nn.Module, memory: Tensor, source: Tensor, model: Transformer, start_id: int, end_id: int, max_length: int
) -> Tensor:
    """Token after token from any callable that takes what `Step` takes."""
    batch = source.shape[0]
    layers, _, _, heads, _, width = memory.shape
    positions = sinusoidal_positions(max_length, model.size, source.device)
    past = memory.new_empty(layers, 2, batch, heads, 0, width)
    tokens = source.new_full((batch, 1), start_id)
    memory_seen = (source != model.padding_id)[:, None, None, :]
    finished = torch.zeros(batch, dtype=torch.bool)
    for length in range(max_length):
        seen = (tokens != model.padding_id)[:, None, None, :]
        logits, past = step(tokens[:, -1:], positions[length : length + 1], past, memory, seen, memory_seen)
        chosen = logits.argmax(-1).masked_fill(finished, model.padding_id)
        tokens = torch.cat((tokens, chosen.unsqueeze(1)), dim=1)
        finished = finished | (chosen == end_id)
        if bool(finished.all()):
            break
    return tokens[:, 1:]
