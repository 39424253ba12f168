"""Greedy translation side by side: the same loop around our step, torch's and onnxruntime's, all with kept keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.deployment.decoding import Step, loop
from autosparse.deployment.engine import Deployed, deploy
from autosparse.deployment.engine_bench import EAGER, ORT, Call, onnx_session
from autosparse.models.transformer import Transformer

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
    models: Mapping[str, nn.Module], source: Tensor, threads: int, tokens: int
) -> tuple[dict[str, Call], list[str]]:
    """Everyone writes `tokens` tokens for these sentences; encoding is part of it for none, decoding for all."""
    notes = ["decoding alone is timed: the encoder's states are there already; torch.compile takes no part in it"]
    (*_, last) = models.values()
    assert isinstance(last, Transformer)
    step = Step(last).eval()
    memory = step.memory(last.encode(source)).contiguous()

    def translate(step: Any, model: Transformer) -> Call:
        return lambda: loop(step, memory, source, model, START_ID, NO_END, tokens)

    calls: dict[str, Call] = {EAGER: translate(step, last)}
    layers, _, batch, heads, _, width = memory.shape
    seen = torch.ones(batch, 1, 1, 4, dtype=torch.bool)
    examples = (
        torch.ones(batch, 1, dtype=torch.int64), torch.zeros(1, last.size), torch.randn(layers, 2, batch, heads, 3, width),
        memory, seen, torch.ones(batch, 1, 1, source.shape[1], dtype=torch.bool),
    )  # fmt: skip
    try:
        calls[ORT] = translate(OnnxStep(step, examples, threads), last)
    except ImportError as error:
        notes.append(f"onnxruntime was left out: {error}; pip install onnx onnxscript onnxruntime")
    for title, model in models.items():
        assert isinstance(model, Transformer)
        deployed = deploy(model, (source, source[:, :1].contiguous()), threads=threads)
        assert isinstance(deployed, Deployed)
        inner = deployed.module
        assert isinstance(inner, Transformer)
        calls[title] = translate(Step(inner).eval(), inner)
    return calls, notes
