"""`deploy`: a trained model for serving, with norms folded, weights packed, and every layer computed the fastest way found."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from autosparse.common.warnings import warn
from autosparse.kernels import inference
from autosparse.models.transformer import Transformer
from autosparse.serving.capture import CannotCaptureError, Examples, capture, with_shapes
from autosparse.serving.fold import fold
from autosparse.serving.layerwise import replace_layers
from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import LayerChoice, NativeRegion
from autosparse.serving.rewrite import use_native_regions, use_packed_linears
from autosparse.serving.translation.decoder import NativeDecoder
from autosparse.serving.translation.program import can_run
from autosparse.serving.translation.step import greedy

# A result further off than this, as a fraction of the largest value, is a defect and not rounding.
TOLERANCE = 1e-4
COMPARED_TOKENS = 4


class Deployed(nn.Module):
    """A model for evaluation only. Methods of the original that were kept (such as `generate`) are reached through it."""

    def __init__(self, module: nn.Module, notes: list[str], threads: int) -> None:
        super().__init__()
        self.module = module
        self.notes = notes
        self.threads = threads
        super().train(False)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with torch.no_grad():
            return self.module(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def train(self, mode: bool = True) -> Deployed:
        if mode:
            raise RuntimeError("a deployed model cannot be trained: train the plain model, then deploy it again")
        return self

    def _apply(self, *_: Any, **__: Any) -> Deployed:
        raise RuntimeError("a deployed model stays on the CPU in float32; move or cast the plain model instead")

    def layers(self, *examples: Tensor) -> list[LayerChoice]:
        """How every layer is computed; with example inputs, measured while they pass through the native regions."""
        found: list[LayerChoice] = []
        handles = []
        for part in self.modules():
            if isinstance(part, NativeRegion) and examples:

                def record(region: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                    assert isinstance(region, NativeRegion)
                    found.extend(region.choices(list(inputs)))

                handles.append(part.register_forward_pre_hook(record))
        if handles:
            self(*examples)
        for handle in handles:
            handle.remove()
        return found + [part.choice() for part in self.modules() if isinstance(part, PackedLinear)]


class DeployedTransformer(Deployed):
    """Our Transformer: greedy translation keeps the keys and values of earlier tokens; natively, if there is a decoder."""

    def __init__(self, module: nn.Module, notes: list[str], threads: int, decoder: NativeDecoder | None) -> None:
        super().__init__(module, notes, threads)
        self.decoder = decoder

    @torch.no_grad()
    def generate(self, source: Tensor, start_id: int, end_id: int, max_length: int = 128) -> Tensor:
        """What the plain model's `generate` gives, one token a step."""
        assert isinstance(self.module, Transformer)
        if self.decoder is not None and max_length > 0 and self.decoder.takes(source, max_length):
            return self.decoder.translate(source, start_id, end_id, max_length)
        return greedy(self.module, source, start_id, end_id, max_length)


def deploy(model: nn.Module, example_input: Tensor | Examples, *, threads: int | None = None) -> nn.Module:
    """The model for serving inputs like the example's, on so many threads (torch's own number by default).

    The model given is left as it is. Batch norms are folded, ReLU and sums fused, weights packed for the native kernels, and
    for every layer dense or sparse is chosen by measuring. Other batch and image sizes work too, with the same choices.
    """
    examples = example_input if isinstance(example_input, tuple) else (example_input,)
    _check(model, examples, threads)
    count = torch.get_num_threads() if threads is None else threads
    plain = copy.deepcopy(model).eval().requires_grad_(False)
    with torch.no_grad(), _threads(count):
        wanted = plain(*examples)
        engine = inference.engine()
        notes = [] if engine is not None else [f"all layers run in dense torch: {inference.why_not()}"]
        found = _captured(plain, examples, engine, count, notes)
        if found is None or not agree(found(*examples), wanted):
            if found is not None:
                notes.append("the captured graph computes something else than the model; its layers were replaced one by one")
            found = copy.deepcopy(model).eval().requires_grad_(False)
            notes += replace_layers(found, examples, engine, count)
            if not agree(found(*examples), wanted):
                raise RuntimeError("the deployed model computes something else than the plain one: please report this model")
        decoder = _decoder(found, examples, engine, count, notes)
    for note in notes:
        warn(f"deploy: {note}")
    if isinstance(found, Transformer):
        return DeployedTransformer(found, notes, count, decoder)
    return Deployed(found, notes, count)


def _decoder(
    model: nn.Module, examples: Examples, engine: inference.Engine | None, threads: int, notes: list[str]
) -> NativeDecoder | None:
    """The native decoder of our Transformer, if it gives what the model gives for the example's first tokens."""
    if engine is None or not isinstance(model, Transformer) or not can_run(model):
        return None
    source, target = examples
    assert isinstance(source, Tensor)
    assert isinstance(target, Tensor)
    decoder = NativeDecoder(model, engine, threads)
    begin = target[:, :COMPARED_TOKENS]
    if not begin.numel() or not decoder.takes(source, begin.shape[1]):
        return decoder
    states = model.encode(source)
    wanted = model.decode(begin, states, source == model.padding_id)
    with decoder.sentences(states, source != model.padding_id, begin.shape[1]) as sentences:
        for position in range(begin.shape[1]):
            if not agree(model.output(sentences.states(begin[:, position], position)), wanted[:, position]):
                notes.append("the native decoder computes something else than the model; translations are decoded in torch")
                return None
    return decoder


def _captured(
    plain: nn.Module, examples: Examples, engine: inference.Engine | None, threads: int, notes: list[str]
) -> nn.Module | None:
    try:
        graph = fold(capture(plain, examples))
    except CannotCaptureError as error:
        notes.append(
            f"the model keeps its structure and its layers are replaced one by one, since torch.fx cannot capture it ({error})"
        )
        return None
    with_shapes(graph, examples)
    if engine is not None:
        notes += use_native_regions(graph, examples, engine, threads)
    use_packed_linears(graph, engine, threads)
    return graph


def _check(model: nn.Module, examples: Examples, threads: int | None) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"deploy takes a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, Deployed):
        raise TypeError("the model is deployed already; give deploy the plain model")
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}; give 1 or more, or None for torch's own number")
    if any(parametrize.is_parametrized(module) for module in model.modules()):
        raise ValueError("the model still carries its training parametrizations: call sparsifier.finalize() first, then deploy")
    for each in (*model.parameters(), *(example for example in examples if isinstance(example, Tensor))):
        if each.device.type != "cpu":
            raise ValueError(
                f"deploy is for the CPU, but a tensor is on {each.device}; call .cpu() on the model and the example"
            )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def agree(found: Any, wanted: Any) -> bool:
    """Whether two results have the same structure and nearly the same numbers."""
    if isinstance(wanted, Tensor):
        if not isinstance(found, Tensor) or found.shape != wanted.shape:
            return False
        if not wanted.is_floating_point():
            return bool(torch.equal(found, wanted))
        size = float(wanted.abs().max()) if wanted.numel() else 0.0
        return bool(torch.allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE * size, equal_nan=True))
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(key in found and agree(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(agree(a, b) for a, b in zip(found, wanted, strict=True))
    return bool(found == wanted)
