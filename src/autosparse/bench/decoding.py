"""Greedy translation side by side: our decoder, and one loop around torch's and onnxruntime's; all keep keys and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.bench.engines import EAGER, ORT, Call, onnx_session
from autosparse.models.transformer import Transformer, greedy, sinusoidal_positions
from autosparse.serving.deployed import Deployed
from autosparse.serving.deployment import deploy
from autosparse.serving.linear import PackedLinear
from autosparse.serving.translation.decoder import MAX_SCREENED
from autosparse.serving.translation.deployed import DeployedTransformer

START_ID = 1
NO_END = -1  # nothing ends early: every contestant writes the same number of tokens
StepFunction = Callable[..., tuple[Tensor, Tensor]]


class DecoderStep(nn.Module):
    """`Transformer.step` with plain tensors in and out, so that it can be exported as well as run."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def memory(self, states: Tensor) -> Tensor:
        """Keys and values of the encoder's states: (layers, 2, batch, heads, length, size of a head)."""
        return _stacked(self.model.memory(states))

    def forward(
        self, token: Tensor, position: Tensor, past: Tensor, memory: Tensor, mask: Tensor, memory_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits (batch, vocabulary) after `token` (batch, 1), and `past` with its keys and values added."""
        pairs = [[(layer[0], layer[1]) for layer in tensor] for tensor in (past, memory)]
        logits, present = self.model.step(token, position, pairs[0], mask, pairs[1], memory_mask)
        return logits, _stacked(present)


def _stacked(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.stack([torch.stack(pair) for pair in pairs])


class OnnxStep:
    """A step that onnxruntime computes."""

    def __init__(self, step: DecoderStep, examples: tuple[Tensor, ...], threads: int) -> None:
        past, words = torch.export.Dim("past"), torch.export.Dim("words")
        sides: Any = ({}, {}, {4: past}, {4: words}, {3: past + 1}, {3: words})
        self.session = onnx_session(step, examples, threads, sides)
        self.names = [side.name for side in self.session.get_inputs()]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        logits, past = self.session.run(None, {name: side.numpy() for name, side in zip(self.names, inputs, strict=True)})
        return torch.from_numpy(logits), torch.from_numpy(past)


def decoding_with(step: StepFunction, model: Transformer, memory: Tensor, source: Tensor, tokens: int) -> Call:
    """Decoding alone, with any callable that takes what `DecoderStep` takes."""
    layers, _, batch, heads, _, width = memory.shape
    positions = sinusoidal_positions(tokens, model.size, source.device)
    memory_mask = (source != model.padding_id)[:, None, None, :]
    start = source.new_full((batch,), START_ID)

    def decode() -> Tensor:
        past = memory.new_empty(layers, 2, batch, heads, 0, width)

        def next_tokens(tokens: Tensor) -> Tensor:
            nonlocal past
            mask = (tokens != model.padding_id)[:, None, None, :]
            position = positions[tokens.shape[1] - 1 : tokens.shape[1]]
            logits, past = step(tokens[:, -1:], position, past, memory, mask, memory_mask)
            return logits.argmax(-1)

        return greedy(next_tokens, start, end_id=NO_END, padding_id=model.padding_id, max_length=tokens)

    return decode


def translation_contestants(
    models: Mapping[str, Transformer], source: Tensor, threads: int, tokens: int
) -> tuple[dict[str, Call], list[str], dict[str, Deployed]]:
    """Everyone writes `tokens` tokens for these sentences; encoding is part of it for none, decoding for all."""
    notes = [
        f"{tokens} tokens for sentences of {source.shape[1]} words; decoding alone is timed: the encoder's states, and "
        "their keys and values, are there already; torch.compile takes no part in it"
    ]
    (*_, last) = models.values()
    step = DecoderStep(last).eval()
    memory = step.memory(last.encode(source)).contiguous()
    calls: dict[str, Call] = {EAGER: decoding_with(step, last, memory, source, tokens)}
    layers, _, batch, heads, _, width = memory.shape
    mask = torch.ones(batch, 1, 1, 4, dtype=torch.bool)
    examples = (
        torch.ones(batch, 1, dtype=torch.int64), torch.zeros(1, last.size), torch.randn(layers, 2, batch, heads, 3, width),
        memory, mask, torch.ones(batch, 1, 1, source.shape[1], dtype=torch.bool),
    )  # fmt: skip
    try:
        calls[ORT] = decoding_with(OnnxStep(step, examples, threads), last, memory, source, tokens)
    except ImportError as error:
        notes.append(f"onnxruntime was left out: {error}; pip install onnx onnxscript onnxruntime")
    ours: dict[str, Deployed] = {}
    for title, model in models.items():
        deployed = deploy(model, (source, source[:, :1].contiguous()), threads=threads)
        assert isinstance(deployed, DeployedTransformer)
        ours[title], calls[title] = deployed, our_decoding(deployed, source, tokens)
        notes.append(f"{title}: vocabulary layer {how_vocabulary(deployed, batch)}")
        written = calls[title]()
        if not isinstance(written, Tensor) or not torch.equal(written, model.generate(source, START_ID, NO_END, tokens)):
            notes.append(f"{title}: writes other tokens than the plain model")
    return calls, notes, ours


def our_decoding(deployed: DeployedTransformer, source: Tensor, tokens: int) -> Call:
    """Decoding alone, over and over."""
    model = deployed.module
    assert isinstance(model, Transformer)
    if deployed.decoder is not None:
        sentences = deployed.decoder.begin(model.encode(source), source != model.padding_id, tokens)
        return lambda: sentences.write(START_ID, NO_END)
    step = DecoderStep(model).eval()
    return decoding_with(step, model, step.memory(model.encode(source)), source, tokens)


def how_vocabulary(deployed: DeployedTransformer, batch: int) -> str:
    """How the largest layer of all is computed."""
    if deployed.decoder is not None and deployed.decoder.screen is not None and batch <= MAX_SCREENED:
        return "dense, the largest logit found from eight-bit estimates and computed exactly"
    output = deployed.module.output
    return output.chosen(batch) if isinstance(output, PackedLinear) else "dense, torch"
