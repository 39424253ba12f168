"""Beam search: the likeliest translations of a batch, with the keys and values of earlier tokens cached."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autosparse.models.checks import whole
from autosparse.models.transformer import CachedDecoder, Transformer

IMPOSSIBLE = float("-inf")


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
    cached = CachedDecoder(model, source, beam) if isinstance(model, Transformer) else None
    stepper = cached or _Whole(model, source, beam)
    search = _Search(source, start_id, end_id, padding_id, beam, max_length, length_penalty)
    for _ in range(max_length):
        rows = search.extend(stepper.step(search.alive.flatten(0, 1)))
        if bool(search.finished.all()):
            break
        stepper.select(rows)
    return search.translations()


class _Search:
    """The unfinished hypotheses of every row, and the best finished one."""

    def __init__(
        self, source: Tensor, start_id: int, end_id: int, padding_id: int, beam: int, max_length: int, length_penalty: float
    ) -> None:
        self.end_id, self.padding_id, self.beam = end_id, padding_id, beam
        self.max_length, self.length_penalty = max_length, length_penalty
        batch, device = source.shape[0], source.device
        self.alive = source.new_full((batch, beam, 1), start_id)
        # every beam of a row starts with the same token: only the first may speak, or all would say the same
        self.scores = torch.full((batch, beam), IMPOSSIBLE, device=device)
        self.scores[:, 0] = 0.0
        self.best = source.new_full((batch, max_length), padding_id)
        self.best_score = torch.full((batch,), IMPOSSIBLE, device=device)
        self.ended_count = torch.zeros(batch, dtype=torch.long, device=device)
        self.finished = torch.zeros(batch, dtype=torch.bool, device=device)
        self._rows = torch.arange(batch, device=device)

    def extend(self, logits: Tensor) -> Tensor:
        """Add a token to every hypothesis; gives the rows of `logits` that the new ones continue."""
        log_probability = F.log_softmax(logits.float(), dim=-1)
        log_probability[:, self.padding_id] = IMPOSSIBLE  # filler is no word
        batch, vocabulary = len(self.alive), log_probability.shape[-1]
        total = self.scores.unsqueeze(2) + log_probability.view(batch, self.beam, vocabulary)
        # twice as many as needed: at most `beam` of them end here, so at least `beam` can go on
        candidates, places = total.flatten(1).topk(2 * self.beam)
        parents, tokens = places // vocabulary, places % vocabulary
        ends = tokens == self.end_id
        self._finish(candidates, parents, ends)
        self.scores, places = candidates.masked_fill(ends, IMPOSSIBLE).topk(self.beam)
        parents, tokens = parents.gather(1, places), tokens.gather(1, places)
        rows = (self._rows.unsqueeze(1) * self.beam + parents).flatten()
        self.alive = torch.cat((self.alive.flatten(0, 1)[rows], tokens.view(-1, 1)), dim=1).view(batch, self.beam, -1)
        reachable = _reachable(self.scores[:, 0], self.max_length, self.length_penalty)
        self.finished |= (self.ended_count >= self.beam) | (reachable <= self.best_score)
        return rows

    def _finish(self, candidates: Tensor, parents: Tensor, ends: Tensor) -> None:
        """Record the best of the hypotheses that end here, where it beats the earlier ones."""
        length = self.alive.shape[2]
        # an ending counts if it is among the `beam` best candidates
        counted = ends[:, : self.beam] & (candidates[:, : self.beam] > IMPOSSIBLE)
        self.ended_count += counted.sum(dim=1)
        ended, places = candidates[:, : self.beam].masked_fill(~counted, IMPOSSIBLE).max(dim=1)
        score = ended / ((5 + length) / 6) ** self.length_penalty
        better = (score > self.best_score) & ~self.finished
        if bool(better.any()):
            winners = self.alive[self._rows, parents.gather(1, places.unsqueeze(1)).squeeze(1), 1:]
            text = F.pad(winners, (0, self.max_length - winners.shape[1]), value=self.padding_id)
            text[:, length - 1] = self.end_id
            self.best = torch.where(better.unsqueeze(1), text, self.best)
            self.best_score = torch.where(better, score, self.best_score)

    def translations(self) -> Tensor:
        """The best text of every row, or the likeliest beginning where none ended within max_length."""
        unfinished = self.best_score == IMPOSSIBLE
        beginning = F.pad(self.alive[:, 0, 1:], (0, self.max_length - self.alive.shape[2] + 1), value=self.padding_id)
        texts = torch.where(unfinished.unsqueeze(1), beginning, self.best)
        longest = int((texts != self.padding_id).sum(1).max()) if len(texts) else 0
        return texts[:, : max(longest, 1)]


def _reachable(scores: Tensor, max_length: int, length_penalty: float) -> Tensor:
    """The best score that unfinished hypotheses can still end with: no more loss, and the kindest length."""
    kindest: float = ((5 + max_length) / 6) ** max(length_penalty, 0.0)
    return scores / kindest


class _Whole:
    """Any model(source, target): the whole target is computed again for every token."""

    def __init__(self, model: nn.Module, source: Tensor, beam: int) -> None:
        self.model = model
        self.source = source.repeat_interleave(beam, dim=0)

    def step(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(self.source, tokens)
        return logits[:, -1]

    def select(self, rows: Tensor) -> None:
        # beams never leave their sentence, so the sources stay as they are
        pass
