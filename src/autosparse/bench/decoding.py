"""Greedy translation side by side: our decoder, and one loop around torch's and onnxruntime's; all keep keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from autosparse.bench.inference import EAGER, ORT, Call, onnx_session
from autosparse.models.transformer import Transformer
from autosparse.serving.engine import Deployed, DeployedTransformer, deploy
from autosparse.serving.linear import PackedLinear
from autosparse.serving.translation.decoder import MOST_SCREENED
from autosparse.serving.translation.step import Step, greedy, loop

START_ID = 1
NO_END = -1  # nothing ends early: every contestant writes the same number of tokens


class OnnxStep:
    """A step that onnxruntime computes."""

    def __init__(self, step: Step, examples: tuple[Tensor, ...], threads: int) -> None:
        past, words = torch.export.Dim("past"), torch.export.Dim("words")
        sides: Any = ({}, {}, {4: past}, {4: words}, {3: past + 1}, {3: words})
        self.session = onnx_session(step, examples, threads, sides)
        self.names = [each.name for each in self.session.get_inputs()]

    def __call__(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        logits, past = self.session.run(None, {name: each.numpy() for name, each in zip(self.names, given, strict=True)})
        return torch.from_numpy(logits), torch.from_numpy(past)


def translation_contestants(
    models: Mapping[str, Transformer], source: Tensor, threads: int, tokens: int
) -> tuple[dict[str, Call], list[str], dict[str, Deployed]]:
    """Everyone writes `tokens` tokens for these sentences; encoding is part of it for none, decoding for all."""
    notes = [
        f"{tokens} tokens for sentences of {source.shape[1]} words; decoding alone is timed: the encoder's states, and "
        "their keys and values, are there already; torch.compile takes no part in it"
    ]
    (*_, last) = models.values()
    step = Step(last).eval()
    memory = step.memory(last.encode(source)).contiguous()

    def translate(step: Any) -> Call:
        return lambda: loop(step, memory, source, last, START_ID, NO_END, tokens)

    calls: dict[str, Call] = {EAGER: translate(step)}
    layers, _, batch, heads, _, width = memory.shape
    seen = torch.ones(batch, 1, 1, 4, dtype=torch.bool)
    examples = (
        torch.ones(batch, 1, dtype=torch.int64), torch.zeros(1, last.size), torch.randn(layers, 2, batch, heads, 3, width),
        memory, seen, torch.ones(batch, 1, 1, source.shape[1], dtype=torch.bool),
    )  # fmt: skip
    try:
        calls[ORT] = translate(OnnxStep(step, examples, threads))
    except ImportError as error:
        notes.append(f"onnxruntime was left out: {error}; pip install onnx onnxscript onnxruntime")
    ours: dict[str, Deployed] = {}
    for title, model in models.items():
        deployed = deploy(model, (source, source[:, :1].contiguous()), threads=threads)
        assert isinstance(deployed, DeployedTransformer)
        ours[title], calls[title] = deployed, our_decoding(deployed, source, tokens)
        notes.append(f"{title}: vocabulary layer {how_vocabulary(deployed, batch)}")
        written = calls[title]()
        if not isinstance(written, Tensor) or not torch.equal(written, greedy(model, source, START_ID, NO_END, tokens)):
            notes.append(f"{title}: writes other tokens than the plain model")
    return calls, notes, ours


def our_decoding(deployed: DeployedTransformer, source: Tensor, tokens: int) -> Call:
    """Decoding alone, over and over."""
    model = deployed.module
    assert isinstance(model, Transformer)
    if deployed.decoder is not None:
        sentences = deployed.decoder.begin(model.encode(source), source != model.padding_id, tokens)
        return lambda: sentences.write(START_ID, NO_END)
    step = Step(model).eval()
    memory = step.memory(model.encode(source))
    return lambda: loop(step, memory, source, model, START_ID, NO_END, tokens)


def how_vocabulary(deployed: DeployedTransformer, batch: int) -> str:
    """How the largest layer of all is computed."""
    if deployed.decoder is not None and deployed.decoder.screen is not None and batch <= MOST_SCREENED:
        return "dense, the largest logit found from eight-bit estimates and computed exactly"
    output = deployed.module.output
    return output.chosen(batch) if isinstance(output, PackedLinear) else "dense, torch"
