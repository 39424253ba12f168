"""For models that cannot be captured whole: the structure stays, its convolutional parts and its layers are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.serving.agreement import NARROW_TOLERANCE, TOLERANCE, DiffersError, agree, by_how_much, difference
from autosparse.serving.capture import Captured
from autosparse.serving.example import Example
from autosparse.serving.kinds import as_linear, is_convolution, is_linear
from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import NativeRegion
from autosparse.serving.preparation import Preparation
from autosparse.serving.quantized.attention import use_narrow_attention
from autosparse.serving.quantized.calibration import Calibration, ObservedInput, Quantization, observe_modules
from autosparse.serving.quantized.capture import byte_linear
from autosparse.serving.quantized.linear import FEWEST_FOR_QUADS
from autosparse.serving.reasons import computed_by, not_called
from autosparse.serving.rewrite import captured
from autosparse.serving.signature import CannotCaptureError

FLOAT_BYTES, BITMASK_BYTES = 4, 1 / 8
READ_BY_PARENT = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


@dataclass
class Observed:
    """What modules receive when the example passes: the first call of parts with convolutions, the tokens of linear layers."""

    called: set[nn.Module] = field(default_factory=set)
    calls: dict[nn.Module, Example] = field(default_factory=dict)
    tokens: dict[nn.Module, list[int]] = field(default_factory=dict)


def replace_layers(model: nn.Module, example: Example, preparation: Preparation, convolutions: bool = True) -> None:
    """In place, where there is an engine: the largest parts with convolutions that can be captured, then linear layers."""
    if preparation.engine is None:
        return
    observed = _observe(model, example)
    quantization = preparation.quantization
    inputs: dict[nn.Module, ObservedInput] = {}
    if quantization is not None and quantization.precision == "int8" and not writes_tokens(model):
        linears = {layer: name for name, layer in model.named_modules() if is_linear(layer) and name not in quantization.keep}
        inputs = _inputs(model, linears, quantization, preparation.calibration)
    if convolutions:
        _replace_parts(model, "", observed, preparation, model)
    packed: dict[nn.Module, PackedLinear] = {}
    for name, parent, leaf, layer in list(_linears(model, "", set())):
        if isinstance(parent, READ_BY_PARENT):
            preparation.reasons[name] = computed_by(parent)
            continue
        if parent in observed.called and layer not in observed.called:
            preparation.reasons[name] = not_called(parent)
            continue
        if layer not in packed:
            tokens = [1, *observed.tokens.get(layer, [])]
            packed[layer] = PackedLinear(name, as_linear(layer), preparation.engine, preparation.threads)
            if layer in inputs and packed[layer].usable and _many(tokens) and not is_tied(model, layer):
                packed[layer] = byte_linear(name, as_linear(layer), inputs[layer], preparation, preparation.engine)
                tokens = tokens[1:]
            elif quantization is not None and quantization.precision == "int8":
                packed[layer].why_float = _why_float(packed[layer], model, name in quantization.keep, is_tied(model, layer))
            preparation.choices.linear(packed[layer], tokens, preparation.hot)
        setattr(parent, leaf, packed[layer])
    if inputs:
        use_narrow_attention(model, preparation.engine)


def writes_tokens(model: nn.Module) -> bool:
    """Whether a model decodes token by token: then its linear layers stay in float32, where few non-zeros are few bytes."""
    return callable(getattr(model, "generate", None))


def _inputs(
    model: nn.Module, linears: dict[nn.Module, str], quantization: Quantization, calibration: Calibration
) -> dict[nn.Module, ObservedInput]:
    """What linear layers read."""
    if calibration.known:
        return {
            layer: ObservedInput(calibration.ranges[name], None)
            for layer, name in linears.items()
            if name in calibration.ranges
        }
    inputs = observe_modules(model, linears, quantization.batches, quantization.observer)
    calibration.ranges.update({linears[layer]: read.range for layer, read in inputs.items()})
    return inputs


def _why_float(layer: PackedLinear, model: nn.Module, kept: bool, tied: bool) -> str:
    """Why a linear layer is not in int8."""
    if kept or tied:
        return "float32, since " + ("the score needs it" if kept else "another module holds the same weight")
    few = (
        "tokens are written one at a time"
        if writes_tokens(model)
        else f"it reads fewer than {FEWEST_FOR_QUADS} tokens at a time"
    )
    sparse = BITMASK_BYTES + FLOAT_BYTES * layer.density
    rest = f"its non-zeros with a bitmask are {sparse:.2f} bytes per weight" if sparse < 1 else "sums stay exact"
    return f"float32, since {few}, and {rest}"


def _many(tokens: list[int]) -> bool:
    """Whether a layer computes many tokens at once: one at a time reads weights from memory, where a bitmask is as small."""
    return max(tokens) >= FEWEST_FOR_QUADS


def is_tied(model: nn.Module, layer: nn.Module) -> bool:
    """Whether another module uses the same weight, as an embedding may."""
    weight = layer._parameters.get("weight")
    return any(part is not layer and part._parameters.get("weight") is weight for part in model.modules())


def _linears(module: nn.Module, prefix: str, seen: set[nn.Module]) -> Iterator[tuple[str, nn.Module, str, nn.Module]]:
    """Every place of a linear layer outside captured parts: its name, the module that holds it, its name there, itself."""
    if module in seen or isinstance(module, Captured):
        return
    seen.add(module)
    for leaf, child in module._modules.items():
        name = f"{prefix}.{leaf}".lstrip(".")
        if child is None:
            continue
        if is_linear(child):
            yield name, module, leaf, child
        else:
            yield from _linears(child, name, seen)


def _observe(model: nn.Module, example: Example) -> Observed:
    """Run the example and look at every module's first call."""
    observed = Observed()
    linear = {module for module in model.modules() if is_linear(module)}
    with_convolutions = {module for module in model.modules() if has_convolutions(module)}

    def record(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if module in observed.called:
            return
        observed.called.add(module)
        if module in with_convolutions:
            observed.calls[module] = Example(inputs, named).fresh()
        first = next(iter((*inputs, *named.values())), None)
        if module in linear and isinstance(first, Tensor) and first.dim():
            # all tokens at once, and as decoding goes on one per sample
            counts = {first.shape[:-1].numel(), first.shape[0] if first.dim() > 2 else 1}
            observed.tokens[module] = sorted(max(1, count) for count in counts)

    with ExitStack() as hooks, torch.no_grad():
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(record, with_kwargs=True))
        example.run(model)
    return observed


def has_convolutions(module: nn.Module) -> bool:
    """Whether there is one inside that the engine may compute."""
    return any(is_convolution(part) for part in module.modules())


def _replace_parts(module: nn.Module, prefix: str, observed: Observed, preparation: Preparation, model: nn.Module) -> None:
    """From the outside in; `model` is the whole."""
    for leaf, child in list(module.named_children()):
        name = f"{prefix}.{leaf}".lstrip(".")
        if not has_convolutions(child):
            continue
        part = _part(child, name, observed.calls[child], preparation, model) if child in observed.calls else None
        if is_convolution(child) and child not in observed.called:
            preparation.reasons[name] = not_called(module)
        if part is None:
            _replace_parts(child, name, observed, preparation, model)
        else:
            setattr(module, leaf, part)


def _part(module: nn.Module, name: str, example: Example, preparation: Preparation, model: nn.Module) -> Captured | None:
    """A captured part that computes the same and gains something, in float32 if eight bits are too few; else None."""
    refused = preparation.calibration.refused
    if preparation.quantization is not None and name not in refused:
        taken = len(preparation.choices.taken)
        try:
            return _captured_part(module, name, example, preparation, model)
        except DiffersError:
            refused.append(name)
            del preparation.choices.taken[taken:]
    try:
        return _captured_part(module, name, example, replace(preparation, quantization=None), model)
    except DiffersError:
        return None


def _captured_part(
    module: nn.Module, name: str, example: Example, preparation: Preparation, model: nn.Module
) -> Captured | None:
    """A captured part that gains something; one that computes something else is a DiffersError."""
    quantization = preparation.quantization
    try:
        expected = example.run(module)
        batches = None if quantization is None else _calls(model, module, quantization.batches)
        part = captured(module, example, preparation, name, batches)
    except CannotCaptureError as error:
        preparation.reasons.setdefault(name, f"torch.fx cannot capture it ({error})")
        return None
    tolerance = TOLERANCE if quantization is None else NARROW_TOLERANCE[quantization.precision]
    if quantization is None or not preparation.calibration.known:
        result = example.run(part)
        if not agree(result, expected, tolerance):
            raise DiffersError(by_how_much(difference(result, expected)))
    return part if any(isinstance(inner, NativeRegion) for inner in part.modules()) else None


def _calls(model: nn.Module, part: nn.Module, batches: list[Example]) -> list[Example]:
    """The first call of a part for every batch that passes the whole model."""
    calls: list[Example] = []
    found: list[Example] = []

    def record(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        found.append(Example(inputs, named).fresh())

    with part.register_forward_pre_hook(record, with_kwargs=True), torch.no_grad():
        for batch in batches:
            found.clear()
            batch.run(model)
            calls += found[:1]
    return calls
