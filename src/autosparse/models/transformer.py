"""The Transformer for translation (Vaswani et al. 2017): one embedding serves source, target and output."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from autosparse.models.attention import Attention, FeedForward, KeysAndValues
from autosparse.models.checks import one_of, probability, whole
from autosparse.models.chunked_loss import chunked_cross_entropy

Norm = Literal["pre", "post"]
Visible = Tensor | KeysAndValues  # what attention looks at


def sinusoidal_positions(length: int, size: int, device: torch.device) -> Tensor:
    """Sines in the even, cosines in the odd columns, wavelengths from 2 pi to 20000 pi."""
    rates = torch.exp(torch.arange(0, size, 2, device=device) * (-math.log(10000.0) / size))
    angles = torch.arange(length, device=device).unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class Residual(nn.Module):
    """Layer norm, dropout and sum around a branch; the branch is called between `enter` and `leave`."""

    def __init__(self, size: int, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.before = norm == "pre"
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def enter(self, states: Tensor) -> Tensor:
        """What the branch reads."""
        result: Tensor = self.norm(states) if self.before else states
        return result

    def leave(self, states: Tensor, branch: Tensor) -> Tensor:
        """The sum, normalised here in the post-norm form."""
        total = states + self.dropout(branch)
        result: Tensor = total if self.before else self.norm(total)
        return result


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, size: int, heads: int, feed_forward: int, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(size, heads)
        self.attention_residual = Residual(size, norm, dropout)
        self.feed_forward = FeedForward(size, feed_forward)
        self.feed_forward_residual = Residual(size, norm, dropout)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        inner = self.attention_residual.enter(states)
        states = self.attention_residual.leave(states, self.attention(inner, inner, mask))
        inner = self.feed_forward_residual.enter(states)
        return self.feed_forward_residual.leave(states, self.feed_forward(inner))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention over the encoder's states, feed-forward."""

    def __init__(self, size: int, heads: int, feed_forward: int, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(size, heads)
        self.attention_residual = Residual(size, norm, dropout)
        self.cross_attention = Attention(size, heads)
        self.cross_attention_residual = Residual(size, norm, dropout)
        self.feed_forward = FeedForward(size, feed_forward)
        self.feed_forward_residual = Residual(size, norm, dropout)

    def forward(self, states: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor | None) -> Tensor:
        inner = self.attention_residual.enter(states)
        return self._branches(states, inner, inner, mask, memory, memory_mask)

    def step(
        self, states: Tensor, past: KeysAndValues | None, mask: Tensor | None, memory: KeysAndValues, memory_mask: Tensor | None
    ) -> tuple[Tensor, KeysAndValues]:
        """The next position after those with the keys and values `past`; also gives `past` with this position added."""
        inner = self.attention_residual.enter(states)
        keys, values = self.attention.keys_and_values(inner)
        if past is not None:
            keys, values = torch.cat((past[0], keys), dim=2), torch.cat((past[1], values), dim=2)
        return self._branches(states, inner, (keys, values), mask, memory, memory_mask), (keys, values)

    def _branches(
        self, states: Tensor, inner: Tensor, earlier: Visible, mask: Tensor | None, memory: Visible, memory_mask: Tensor | None
    ) -> Tensor:
        """The layer in order; `inner` is what its first branch reads, and `earlier` the positions that it may look at."""
        states = self.attention_residual.leave(states, self.attention(inner, earlier, mask))
        inner = self.cross_attention_residual.enter(states)
        states = self.cross_attention_residual.leave(states, self.cross_attention(inner, memory, memory_mask))
        inner = self.feed_forward_residual.enter(states)
        return self.feed_forward_residual.leave(states, self.feed_forward(inner))


class Transformer(nn.Module):
    """Encoder and decoder over one vocabulary; token ids come in as (batch, length) with `padding_id` as filler."""

    def __init__(
        self,
        vocabulary: int,
        size: int,
        heads: int,
        feed_forward: int,
        encoder_layers: int,
        decoder_layers: int,
        norm: Norm,
        dropout: float,
        padding_id: int,
    ) -> None:
        super().__init__()
        self.size = size
        self.padding_id = padding_id
        self.embedding = nn.Embedding(vocabulary, size)
        self.dropout = nn.Dropout(dropout)
        settings = (size, heads, feed_forward, norm, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(*settings) for _ in range(encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*settings) for _ in range(decoder_layers))
        # In the pre-norm form nothing has normalised the sum that leaves the last layer.
        self.encoder_norm = nn.LayerNorm(size) if norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(size) if norm == "pre" else nn.Identity()
        self.output = nn.Linear(size, vocabulary, bias=False)
        self._initialise()
        self.output.weight = self.embedding.weight

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.output:
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=self.size**-0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (batch, target length, vocabulary); the target starts with the start token (teacher forcing)."""
        result: Tensor = self.output(self.states(source, target))
        return result

    def states(self, source: Tensor, target: Tensor) -> Tensor:
        """What `output` turns into the logits, for a loss that never holds all of them (chunked_cross_entropy)."""
        return self._decoder_states(target, self.encode(source), source == self.padding_id)

    def chunked_loss(self, source: Tensor, target: Tensor, expected: Tensor, **options: Any) -> Tensor:
        """Cross-entropy of the logits with less memory and time; `options` are those of `chunked_cross_entropy`."""
        return chunked_cross_entropy(self.states(source, target), self.output, expected, **options)

    def encode(self, source: Tensor) -> Tensor:
        """The encoder's states (batch, source length, size)."""
        states = self._embed(source, "source")
        mask = (source != self.padding_id)[:, None, None, :]
        for layer in self.encoder:
            states = layer(states, mask)
        result: Tensor = self.encoder_norm(states)
        return result

    def decode(self, target: Tensor, memory: Tensor, memory_padding: Tensor | None = None) -> Tensor:
        """Logits of every target position, given the encoder's states; `memory_padding` is True at filler."""
        result: Tensor = self.output(self._decoder_states(target, memory, memory_padding))
        return result

    @torch.no_grad()
    def generate(self, source: Tensor, start_id: int, end_id: int, max_length: int = 128) -> Tensor:
        """Greedy translation (batch, at most max_length) without the start token, `padding_id` after the end token."""
        whole("max_length", max_length)
        if self.training:
            raise RuntimeError("generate needs the model in evaluation mode (dropout off): call model.eval() first")
        decoder = CachedDecoder(self, source)

        def next_tokens(tokens: Tensor) -> Tensor:
            return decoder.step(tokens, (tokens != self.padding_id)[:, None, None, :]).argmax(-1)

        start = source.new_full(source.shape[:1], start_id)
        return greedy(next_tokens, start, end_id=end_id, padding_id=self.padding_id, max_length=max_length)

    def decoder_layers(self) -> list[DecoderLayer]:
        return cast("list[DecoderLayer]", list(self.decoder))

    def memory(self, states: Tensor) -> list[KeysAndValues]:
        """What every decoder layer's `step` takes as memory, from the encoder's states."""
        return [layer.cross_attention.keys_and_values(states) for layer in self.decoder_layers()]

    def step(
        self,
        token: Tensor,
        position: Tensor,
        past: Sequence[KeysAndValues | None],
        mask: Tensor | None,
        memory: Sequence[KeysAndValues],
        memory_mask: Tensor | None,
    ) -> tuple[Tensor, list[KeysAndValues]]:
        """Logits (batch, vocabulary) after `token` (batch, 1), and every layer's `past` for the next one.

        `position` is its row of `sinusoidal_positions`; evaluation only, since nothing is dropped here.
        """
        embedded = self.embedding(token) * math.sqrt(self.size)
        states = embedded + position.to(embedded.dtype)
        present = []
        for layer, earlier, sentence in zip(self.decoder_layers(), past, memory, strict=True):
            states, keys_and_values = layer.step(states, earlier, mask, sentence, memory_mask)
            present.append(keys_and_values)
        logits: Tensor = self.output(self.decoder_norm(states[:, -1]))
        return logits, present

    def _embed(self, tokens: Tensor, what: str) -> Tensor:
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise ValueError(f"{what} must hold token ids as (batch, length), got {tokens.dtype} {tuple(tokens.shape)}")
        embedded = self.embedding(tokens) * math.sqrt(self.size)
        positions = sinusoidal_positions(tokens.shape[1], self.size, tokens.device)
        result: Tensor = self.dropout(embedded + positions.to(embedded.dtype))
        return result

    def _decoder_states(self, target: Tensor, memory: Tensor, memory_padding: Tensor | None) -> Tensor:
        states = self._embed(target, "target")
        length = target.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        mask = causal & (target != self.padding_id)[:, None, None, :]
        memory_mask = None if memory_padding is None else ~memory_padding[:, None, None, :]
        for layer in self.decoder:
            states = layer(states, mask, memory, memory_mask)
        result: Tensor = self.decoder_norm(states)
        return result


class CachedDecoder:
    """Translations in progress, `copies` of every sentence: only their newest tokens go through the decoder."""

    def __init__(self, model: Transformer, source: Tensor, copies: int = 1) -> None:
        self.model = model
        self.memory_mask = (source != model.padding_id)[:, None, None, :].repeat_interleave(copies, dim=0)
        self.memory = [
            (keys.repeat_interleave(copies, dim=0), values.repeat_interleave(copies, dim=0))
            for keys, values in model.memory(model.encode(source))
        ]
        self.past: list[KeysAndValues | None] = [None] * len(self.memory)

    def step(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits (rows, vocabulary) after `tokens` (rows, length so far)."""
        position = sinusoidal_positions(tokens.shape[1], self.model.size, tokens.device)[-1]
        logits, present = self.model.step(tokens[:, -1:], position, self.past, mask, self.memory, self.memory_mask)
        self.past = [*present]
        return logits

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the last step, in this order."""
        self.past = [None if past is None else (past[0][rows], past[1][rows]) for past in self.past]


def greedy(next_tokens: Callable[[Tensor], Tensor], start: Tensor, *, end_id: int, padding_id: int, max_length: int) -> Tensor:
    """Greedy translations (batch, at most max_length) without the start tokens (batch,), `padding_id` after the end token.

    `next_tokens` gives the likeliest tokens (batch,) after those so far (batch, length).
    """
    tokens, finished = start.unsqueeze(1), torch.zeros_like(start, dtype=torch.bool)
    for _ in range(max_length):
        chosen = next_tokens(tokens).masked_fill(finished, padding_id)
        tokens = torch.cat((tokens, chosen.unsqueeze(1)), dim=1)
        finished |= chosen == end_id
        if bool(finished.all()):
            break
    return tokens[:, 1:]


def transformer(
    vocabulary: int = 37000,
    size: int = 512,
    heads: int = 8,
    feed_forward: int = 2048,
    encoder_layers: int = 6,
    decoder_layers: int = 6,
    norm: Norm = "pre",
    dropout: float = 0.1,
    padding_id: int = 0,
) -> Transformer:
    """The base Transformer; `norm="post"` is the original order, "pre" the one that trains without care.

    Call it as model(source, target) for logits; also `encode`, `decode` and greedy `generate`.
    """
    whole("vocabulary", vocabulary, minimum=2)
    whole("size", size, minimum=2)
    if size % 2:
        raise ValueError(f"size must be even (sines and cosines come in pairs), got {size}")
    whole("encoder_layers", encoder_layers)
    whole("decoder_layers", decoder_layers)
    one_of("norm", norm, ("pre", "post"))
    probability("dropout", dropout)
    if not 0 <= padding_id < vocabulary:
        raise ValueError(f"padding_id must be a token of the vocabulary, 0 to {vocabulary - 1}, got {padding_id}")
    return Transformer(vocabulary, size, heads, feed_forward, encoder_layers, decoder_layers, norm, dropout, padding_id)
