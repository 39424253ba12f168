"""The Transformer for translation (Vaswani et al. 2017): one embedding serves source, target and output."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from autosparse.models.attention import Attention, FeedForward
from autosparse.models.checks import one_of, probability, whole

Norm = Literal["pre", "post"]


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
        states = self.attention_residual.leave(states, self.attention(inner, inner, mask))
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
        memory = self.encode(source)
        memory_padding = source == self.padding_id
        tokens = source.new_full((source.shape[0], 1), start_id)
        finished = torch.zeros_like(tokens[:, 0], dtype=torch.bool)
        for _ in range(max_length):
            states = self._decoder_states(tokens, memory, memory_padding)
            chosen = self.output(states[:, -1]).argmax(-1).masked_fill(finished, self.padding_id)
            tokens = torch.cat((tokens, chosen.unsqueeze(1)), dim=1)
            finished = finished | (chosen == end_id)
            if bool(finished.all()):
                break
        return tokens[:, 1:]

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
