"""Greedy translation on the native decoder: what `decoding.greedy` gives, at one native call for a token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from autosparse.kernels import inference as native
from autosparse.models.transformer import Transformer, sinusoidal_positions
from autosparse.serving.translation.program import DecoderProgram
from autosparse.serving.translation.screen import Screen

ROOM = 32  # words and positions get room in such steps, so that sentences of other lengths fit as well
KEPT_PROGRAMS = 2
MOST_SCREENED = 64  # sentences; with more the time goes into arithmetic, not into reading weights
MOST_KEPT_FLOATS = 1 << 28  # keys and values of a gigabyte; the plain loop makes room for them as they come


class NativeDecoder:
    """Several threads may translate at the same time: each takes a program of its own."""

    def __init__(self, model: Transformer, engine: native.Engine, threads: int) -> None:
        self.model, self.engine, self.threads = model, engine, threads
        output: nn.Module = model.output
        self.screen = Screen(output) if Screen.suits(output) else None
        self._spare: list[DecoderProgram] = []
        self._lock = threading.Lock()

    def takes(self, source: Tensor, positions: int) -> bool:
        """Whether there is something to translate, and room for so long a translation."""
        kept = source.shape[0] * positions * self.model.size * 2 * len(self.model.decoder)
        return source.dim() == 2 and source.numel() > 0 and kept <= MOST_KEPT_FLOATS

    def translate(self, source: Tensor, start_id: int, end_id: int, max_length: int) -> Tensor:
        """What `decoding.greedy` gives."""
        with self.sentences(self.model.encode(source), source != self.model.padding_id, max_length) as sentences:
            return sentences.write(start_id, end_id)

    def begin(self, states: Tensor, words_seen: Tensor, positions: int) -> Sentences:
        """Sentences to translate: the encoder's states (batch, words, size), and where there are words."""
        batch, words, _ = states.shape
        program = self._take(batch, words, positions)
        program.read(states, words_seen)
        return Sentences(self, program, positions)

    @contextmanager
    def sentences(self, states: Tensor, words_seen: Tensor, positions: int) -> Iterator[Sentences]:
        """The same; afterwards the room is there for others."""
        sentences = self.begin(states, words_seen, positions)
        try:
            yield sentences
        finally:
            with self._lock:
                self._spare = [sentences.program, *self._spare][:KEPT_PROGRAMS]

    def _take(self, batch: int, words: int, positions: int) -> DecoderProgram:
        with self._lock:
            for place, program in enumerate(self._spare):
                if program.fits(batch, words, positions):
                    return self._spare.pop(place)
        words, positions = (-(-count // ROOM) * ROOM for count in (words, positions))
        return DecoderProgram(self.model, self.engine, self.threads, batch, words, positions)


class Sentences:
    """Translations in the making."""

    def __init__(self, decoder: NativeDecoder, program: DecoderProgram, positions: int) -> None:
        self.model, self.program = decoder.model, program
        self._screen = decoder.screen if program.batch <= MOST_SCREENED else None
        self._estimates = torch.empty(0 if self._screen is None else program.batch * self._screen.layer.out_features)
        self._places = sinusoidal_positions(positions, self.model.size, torch.device("cpu"))

    def states(self, tokens: Tensor, position: int) -> Tensor:
        """What the vocabulary layer reads (batch, size) after the tokens (batch,) of this position, the next after the last."""
        program = self.program
        program.seen[:, position] = tokens != self.model.padding_id
        torch.add(self._places[position], self.model.embedding(tokens), alpha=self.model.size**0.5, out=program.states)
        program.run(position)
        return program.result

    def next_tokens(self, states: Tensor) -> Tensor:
        """The most likely tokens (batch,)."""
        found = None if self._screen is None else self._screen.largest(states, self._estimates)
        return self.model.output(states).argmax(-1) if found is None else found

    def write(self, start_id: int, end_id: int) -> Tensor:
        """Greedy translations (batch, at most the positions), filler after the end token."""
        batch, positions = self.program.batch, len(self._places)
        tokens = torch.full((batch, positions), self.model.padding_id)
        last, finished = torch.full((batch,), start_id), torch.zeros(batch, dtype=torch.bool)
        for position in range(positions):
            last = self.next_tokens(self.states(last, position)).masked_fill_(finished, self.model.padding_id)
            tokens[:, position] = last
            finished |= last == end_id
            if finished.all():
                return tokens[:, : position + 1]
        return tokens
