"""Greedy translation on the native decoder: what `Transformer.generate` gives, at one native call per token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from autosparse.kernels.library import Engine
from autosparse.models.transformer import Transformer, greedy, sinusoidal_positions
from autosparse.serving.translation.program import DecoderProgram
from autosparse.serving.translation.screen import Screen

CAPACITY_STEP = 32  # words and positions are rounded up to multiples of this, so that sentences of other lengths fit as well
SPARE_PROGRAMS = 2
MAX_SCREENED = 64  # sentences; with more the time goes into arithmetic, not into reading weights
MAX_CACHED_FLOATS = 1 << 28  # a gigabyte of keys and values; torch's loop allocates them as it goes


class NativeDecoder:
    """Several threads may translate at the same time: each takes a program of its own."""

    def __init__(self, model: Transformer, engine: Engine, threads: int) -> None:
        self.model, self.engine, self.threads = model, engine, threads
        output: nn.Module = model.output
        self.screen = Screen(output) if Screen.suits(output) else None
        self._spare: list[DecoderProgram] = []
        self._lock = threading.Lock()

    def use_one_thread(self) -> None:
        """In a forked child; spare programs are for more threads."""
        self.threads, self._spare, self._lock = 1, [], threading.Lock()

    def takes(self, source: Tensor, positions: int) -> bool:
        """Whether there is something to translate, and room for a translation of this length."""
        if source.dim() != 2 or source.numel() == 0:
            return False
        floats = len(source) * positions * self.model.size * 2 * len(self.model.decoder)
        return floats <= MAX_CACHED_FLOATS

    def translate(self, source: Tensor, start_id: int, end_id: int, max_length: int) -> Tensor:
        """Greedy translations, as `Transformer.generate` gives them."""
        with self.sentences(self.model.encode(source), source != self.model.padding_id, max_length) as sentences:
            return sentences.write(start_id, end_id)

    def begin(self, states: Tensor, is_word: Tensor, positions: int) -> Sentences:
        """Sentences to translate: the encoder's states (batch, words, size), and where there are words."""
        batch, words, _ = states.shape
        program = self._take(batch, words, positions)
        program.read(states, is_word)
        return Sentences(self, program, positions)

    @contextmanager
    def sentences(self, states: Tensor, is_word: Tensor, positions: int) -> Iterator[Sentences]:
        """The same, with the program free for others afterwards."""
        sentences = self.begin(states, is_word, positions)
        try:
            yield sentences
        finally:
            with self._lock:
                self._spare = [sentences.program, *self._spare][:SPARE_PROGRAMS]

    def _take(self, batch: int, words: int, positions: int) -> DecoderProgram:
        with self._lock:
            for place, program in enumerate(self._spare):
                if program.fits(batch, words, positions):
                    return self._spare.pop(place)
        words, positions = (-(-count // CAPACITY_STEP) * CAPACITY_STEP for count in (words, positions))
        return DecoderProgram(self.model, self.engine, self.threads, batch, words, positions)


class Sentences:
    """Translations in progress."""

    def __init__(self, decoder: NativeDecoder, program: DecoderProgram, positions: int) -> None:
        self.model, self.program = decoder.model, program
        self._screen = decoder.screen if program.batch <= MAX_SCREENED else None
        estimates = 0 if self._screen is None else program.batch * self._screen.layer.out_features
        self._estimates = torch.empty(estimates, dtype=torch.float32)
        self._positions = sinusoidal_positions(positions, self.model.size, torch.device("cpu"))

    def states(self, tokens: Tensor, position: int) -> Tensor:
        """What the vocabulary layer reads (batch, size) after the tokens (batch,) of this position, the next after the last."""
        program = self.program
        program.visible[:, position] = tokens != self.model.padding_id
        torch.add(self._positions[position], self.model.embedding(tokens), alpha=self.model.size**0.5, out=program.states)
        program.run(position)
        return program.result

    def next_tokens(self, tokens: Tensor) -> Tensor:
        """The likeliest tokens (batch,) after `tokens` (batch, length so far)."""
        states = self.states(tokens[:, -1], tokens.shape[1] - 1)
        largest = None if self._screen is None else self._screen.largest(states, self._estimates)
        return self.model.output(states).argmax(-1) if largest is None else largest

    def write(self, start_id: int, end_id: int) -> Tensor:
        """Greedy translations (batch, at most the positions), filler after the end token."""
        start = torch.full((self.program.batch,), start_id)
        length = len(self._positions)
        return greedy(self.next_tokens, start, end_id=end_id, padding_id=self.model.padding_id, max_length=length)
