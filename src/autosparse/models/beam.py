"""Beam search: the likeliest translations of a batch, with keys and values of earlier tokens kept."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.models.attention import Attention
from autosparse.models.checks import whole
from autosparse.models.transformer import DecoderLayer, Transformer, sinusoidal_positions

IMPOSSIBLE = float("-inf")


class Stepper(Protocol):
    """Next-token logits of unfinished translations, one token longer with every call."""

    def step(self, tokens: Tensor) -> Tensor:
        """(rows, vocabulary) after `tokens`, (rows, length so far)."""

    def select(self, rows: Tensor) -> None:
        """Go on with these rows of the last step, in this order."""


@torch.no_grad()
def beam_search(
    model: nn.Module,
    source: Tensor,
    *,
    start_id: int,
    end_id: int,
    padding_id: int = 0,
    beam: int = 4,
    max_length: int = 128,
    length_penalty: float = 0.6,
) -> Tensor:
    """The best translation of every row (batch, at most max_length): no start token, `padding_id` after the end token.

    Hypotheses compete by log probability / ((5 + length) / 6) ** length_penalty (Wu et al. 2016, equation 14). A row is
    finished when `beam` of them have ended, or none that goes on can still win; a beam of 1 is greedy.
    """
    whole("beam", beam)
    whole("max_length", max_length)
    if model.training:
        raise RuntimeError("beam_search needs the model in evaluation mode (dropout off): call model.eval() first")
    batch = source.shape[0]
    stepper: Stepper = _Cached(model, source, beam) if isinstance(model, Transformer) else _Whole(model, source, beam)
    alive = source.new_full((batch, beam, 1), start_id)
    # every beam of a row starts with the same token: only the first may speak, or all would say the same
    scores = torch.full((batch, beam), IMPOSSIBLE, device=source.device)
    scores[:, 0] = 0.0
    best = source.new_full((batch, max_length), padding_id)
    best_score = torch.full((batch,), IMPOSSIBLE, device=source.device)
    ended_count = torch.zeros(batch, dtype=torch.long, device=source.device)
    finished = torch.zeros(batch, dtype=torch.bool, device=source.device)
    first_row = torch.arange(batch, device=source.device).unsqueeze(1) * beam
    for length in range(1, max_length + 1):
        log_probability = F.log_softmax(stepper.step(alive.flatten(0, 1)).float(), dim=-1)
        log_probability[:, padding_id] = IMPOSSIBLE  # filler is no word
        vocabulary = log_probability.shape[-1]
        total = scores.unsqueeze(2) + log_probability.view(batch, beam, vocabulary)
        # twice as many as needed: at most `beam` of them end here, so at least `beam` can go on
        candidates, places = total.flatten(1).topk(2 * beam)
        parents, tokens = places // vocabulary, places % vocabulary
        ends = tokens == end_id
        penalty = ((5 + length) / 6) ** length_penalty
        # an ending counts if it is among the `beam` best candidates
        counted = ends[:, :beam] & (candidates[:, :beam] > IMPOSSIBLE)
        ended, which = candidates[:, :beam].masked_fill(~counted, IMPOSSIBLE).max(dim=1)
        better = (ended / penalty > best_score) & ~finished
        if bool(better.any()):
            winners = alive[torch.arange(batch, device=source.device), parents.gather(1, which.unsqueeze(1)).squeeze(1), 1:]
            text = F.pad(winners, (0, max_length - winners.shape[1]), value=padding_id)
            text[:, length - 1] = end_id
            best = torch.where(better.unsqueeze(1), text, best)
            best_score = torch.where(better, ended / penalty, best_score)
        scores, kept = candidates.masked_fill(ends, IMPOSSIBLE).topk(beam)
        parents, tokens = parents.gather(1, kept), tokens.gather(1, kept)
        chosen = (first_row + parents).flatten()
        alive = torch.cat((alive.flatten(0, 1)[chosen], tokens.view(-1, 1)), dim=1).view(batch, beam, -1)
        ended_count += counted.sum(dim=1)
        finished |= (ended_count >= beam) | (_reachable(scores[:, 0], max_length, length_penalty) <= best_score)
        if bool(finished.all()):
            break
        stepper.select(chosen)
    # a row that found no end within max_length gives its likeliest beginning
    unfinished = best_score == IMPOSSIBLE
    rest = F.pad(alive[:, 0, 1:], (0, max_length - alive.shape[2] + 1), value=padding_id)
    best = torch.where(unfinished.unsqueeze(1), rest, best)
    longest = int((best != padding_id).sum(1).max()) if batch else 0
    return best[:, : max(longest, 1)]


def _reachable(scores: Tensor, max_length: int, length_penalty: float) -> Tensor:
    """The best score that unfinished hypotheses can still end with: no more loss, and the kindest length."""
    kindest: float = ((5 + max_length) / 6) ** max(length_penalty, 0.0)
    return scores / kindest


class _Whole:
    """Any model(source, target): the whole target is computed anew for every token."""

    def __init__(self, model: nn.Module, source: Tensor, beam: int) -> None:
        self.model = model
        self.source = source.repeat_interleave(beam, dim=0)

    def step(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(self.source, tokens)
        return logits[:, -1]

    def select(self, rows: Tensor) -> None:
        # beams never leave their sentence, so the sources stay as they are
        pass


class _Cached:
    """Our Transformer: only the newest token goes through the decoder."""

    def __init__(self, model: Transformer, source: Tensor, beam: int) -> None:
        self.model = model
        self.layers: list[DecoderLayer] = [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]
        memory = model.encode(source)
        self.mask = (source != model.padding_id)[:, None, None, :].repeat_interleave(beam, dim=0)
        self.memory = [
            tuple(side.repeat_interleave(beam, dim=0) for side in _keys_and_values(layer.cross_attention, memory))
            for layer in self.layers
        ]
        self.past: list[tuple[Tensor, Tensor] | None] = [None] * len(self.layers)

    def step(self, tokens: Tensor) -> Tensor:
        model, length = self.model, tokens.shape[1]
        embedded = model.embedding(tokens[:, -1:]) * model.size**0.5
        position = sinusoidal_positions(length, model.size, tokens.device)[-1]
        states: Tensor = embedded + position.to(embedded.dtype)
        for place, layer in enumerate(self.layers):
            inner = layer.attention_residual.enter(states)
            keys, values = _keys_and_values(layer.attention, inner)
            earlier = self.past[place]
            if earlier is not None:
                keys, values = torch.cat((earlier[0], keys), dim=2), torch.cat((earlier[1], values), dim=2)
            self.past[place] = keys, values
            states = layer.attention_residual.leave(states, layer.attention.attend(inner, keys, values))
            inner = layer.cross_attention_residual.enter(states)
            keys, values = self.memory[place]
            states = layer.cross_attention_residual.leave(states, layer.cross_attention.attend(inner, keys, values, self.mask))
            inner = layer.feed_forward_residual.enter(states)
            states = layer.feed_forward_residual.leave(states, layer.feed_forward(inner))
        logits: Tensor = model.output(model.decoder_norm(states[:, -1]))
        return logits

    def select(self, rows: Tensor) -> None:
        self.past = [None if past is None else (past[0][rows], past[1][rows]) for past in self.past]


def _keys_and_values(attention: Attention, memory: Tensor) -> tuple[Tensor, Tensor]:
    return attention.split(attention.key(memory)), attention.split(attention.value(memory))
