"""Which layers suffer most from eight bits, found by quantizing one at a time; they stay in float32 if a score needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from autosparse.quantization.affine import dequantize_weight, quantize_weight, weight_scales
from autosparse.serving.agreement import difference
from autosparse.serving.copies import working_copy
from autosparse.serving.deployed import Deployed
from autosparse.serving.kinds import is_convolution, is_linear
from autosparse.serving.quantized.calibration import Quantization, observe_modules
from autosparse.serving.quantized.steps import Affine, Range


def within(
    model: nn.Module,
    quantization: Quantization,
    evaluate: Callable[[nn.Module], float],
    max_drop: float,
    prepare: Callable[[Quantization], Deployed],
) -> Deployed:
    """The int8 model with as few layers in float32 as its score needs: one, two, four and so on, the worst first.

    One that is refused in int8 as a whole, since it computes something else, needs more of them, too.
    """
    if max_drop < 0:
        raise ValueError(f"max_drop={max_drop}; give how much of the score may be lost, 0 or more")
    plain, _ = working_copy(model)
    wanted = float(evaluate(plain)) - max_drop
    served = prepare(quantization)
    if _in_bytes(served) and float(evaluate(served)) >= wanted:
        return served
    order = sorted(sensitivities(plain, quantization).items(), key=lambda pair: -pair[1])
    count = 1
    while True:
        kept = frozenset(name for name, _ in order[:count])
        served = prepare(replace(quantization, keep=kept))
        if (_in_bytes(served) and float(evaluate(served)) >= wanted) or count >= len(order):
            return served
        count = min(2 * count, len(order))


def _in_bytes(served: Deployed) -> bool:
    return served.prepared is not None and served.prepared.precision == "int8"


def sensitivities(model: nn.Module, quantization: Quantization) -> dict[str, float]:
    """By layer, how far off the model's output is on the first batch when only this layer is quantized."""
    layers = {name: layer for name, layer in model.named_modules() if is_convolution(layer) or is_linear(layer)}
    names = {layer: name for name, layer in layers.items()}
    ranges = observe_modules(model, names, quantization.batches, quantization.observer)
    batch = quantization.batches[0]
    with torch.no_grad():
        expected = batch.run(model)
        found = {}
        for layer, observed in ranges.items():
            with _quantized(layer, observed.range):
                found[names[layer]] = difference(batch.run(model), expected)
    return found


@contextmanager
def _quantized(layer: nn.Module, limits: Range) -> Iterator[None]:
    """A layer whose weight and input are rounded as in eight bits."""
    weight = layer._parameters["weight"]
    assert weight is not None
    by_output = weight if not _transposed(layer) else weight.t()
    scales = weight_scales(by_output)
    near = dequantize_weight(quantize_weight(by_output, scales), scales)
    affine = Affine.covering(*limits)

    def round_input(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (affine.rounded(inputs[0]), *inputs[1:]) if inputs else inputs

    handle = layer.register_forward_pre_hook(round_input)
    layer._parameters["weight"] = nn.Parameter(near.t() if _transposed(layer) else near, requires_grad=False)
    try:
        yield
    finally:
        handle.remove()
        layer._parameters["weight"] = weight


def _transposed(layer: nn.Module) -> bool:
    return not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
