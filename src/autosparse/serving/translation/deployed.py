"""A deployed Transformer: greedy translation runs on the native decoder where there is one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autosparse.kernels.library import Engine
from autosparse.models.transformer import Transformer
from autosparse.serving.agreement import agree
from autosparse.serving.deployed import Deployed
from autosparse.serving.translation.decoder import NativeDecoder
from autosparse.serving.translation.program import can_run

COMPARED_TOKENS = 4


class DeployedTransformer(Deployed):
    """Our Transformer with a native decoder; `decoder` is None where torch decodes."""

    def __init__(
        self, module: nn.Module, examples: tuple[Any, ...], engine: Engine | None, threads: int, notes: list[str]
    ) -> None:
        super().__init__(module, examples, engine, threads, notes)
        self.decoder: NativeDecoder | None = None
        if engine is not None and can_run(module):
            decoder = NativeDecoder(module, engine, threads)
            if _agrees(decoder, *examples):
                self.decoder = decoder
            else:
                notes.append("the native decoder computes something else than the model; translations are decoded in torch")

    def use_one_thread(self) -> None:
        super().use_one_thread()
        if self.decoder is not None:
            self.decoder.use_one_thread()

    @torch.no_grad()
    def generate(self, source: Tensor, start_id: int, end_id: int, max_length: int = 128) -> Tensor:
        """The plain model's `generate`, natively if there is room for so long a translation."""
        if self.decoder is not None and max_length > 0 and self.decoder.takes(source, max_length):
            return self.decoder.translate(source, start_id, end_id, max_length)
        assert isinstance(self.module, Transformer)
        return self.module.generate(source, start_id, end_id, max_length)


def _agrees(decoder: NativeDecoder, source: Any, target: Any) -> bool:
    """Whether the decoder gives the model's logits for the first tokens of the example."""
    model, first = decoder.model, target[:, :COMPARED_TOKENS]
    length = first.shape[1]
    if not first.numel() or not decoder.takes(source, length):
        return True
    states = model.encode(source)
    expected = model.decode(first, states, source == model.padding_id)
    with decoder.sentences(states, source != model.padding_id, length) as sentences:
        return all(agree(model.output(sentences.states(first[:, place], place)), expected[:, place]) for place in range(length))
