"""A captured graph in eight bits, in torch: what rounding takes from the mean of every channel and does to the outputs.

A channel that is nearly constant has a tiny variance, so the norm folded into it multiplies whatever rounding adds by up to
1 / sqrt(eps), about 300. What rounding adds to such a channel is nearly constant too: its bias takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from autosparse.quantization.affine import dequantize_weight
from autosparse.serving.agreement import difference
from autosparse.serving.capture import module_of
from autosparse.serving.kinds import as_linear, origin_of
from autosparse.serving.quantized.steps import Affine, ByteRows, QuantizedConvolution, quantized_convolution
from autosparse.serving.steps import ConvolutionStep

ENOUGH_SAMPLES = 32  # whose means are compared
DIGITS = 5  # of a correction: the file that keeps it is text

Correct = Callable[[fx.Node, Tensor], Tensor]


@dataclass(frozen=True)
class Narrow:
    """What of a graph becomes bytes: values, convolutions, and linear layers with how their inputs are read."""

    values: dict[fx.Node, Affine]
    convolutions: dict[fx.Node, ConvolutionStep]
    linears: dict[fx.Node, Affine]

    @property
    def layers(self) -> Collection[fx.Node]:
        return self.convolutions.keys() | self.linears.keys()

    def channels(self, layer: fx.Node, graph: fx.GraphModule) -> int:
        """How many a layer gives."""
        if layer in self.convolutions:
            return self.convolutions[layer].out_channels
        module = module_of(layer, graph)
        assert module is not None
        return as_linear(module).out_features


class _Means(fx.Interpreter):
    """The mean of every channel that these layers give."""

    def __init__(self, graph: fx.GraphModule, layers: Collection[fx.Node]) -> None:
        super().__init__(graph)
        self._layers = layers
        self.found: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n in self._layers:
            self.found[n] = _channel_means(result)
        return result


class _Rounded(fx.Interpreter):
    """Computes with the integers that the engine will compute with; `correct` gives what a layer's biases lack."""

    def __init__(self, graph: fx.GraphModule, narrow: Narrow, correct: Correct) -> None:
        super().__init__(graph)
        self._graph, self._narrow, self._correct = graph, narrow, correct
        self._convolutions = {node: quantized_convolution(step) for node, step in narrow.convolutions.items()}

    def run_node(self, n: fx.Node) -> Any:
        if n in self._convolutions:
            result = _convolve(self._convolutions[n], self.env[n.all_input_nodes[0]])
            result = result + self._correct(n, result).view(1, -1, 1, 1)
        elif n in self._narrow.linears:
            result = _multiply(module_of(n, self._graph), self._narrow.linears[n], self.env[n.all_input_nodes[0]])
            result = result + self._correct(n, result)
        else:
            result = super().run_node(n)
        affine = self._narrow.values.get(n)
        return result if affine is None else affine.rounded(result)


def corrections(graph: fx.GraphModule, narrow: Narrow, batches: Sequence[list[Tensor]]) -> dict[fx.Node, list[float]]:
    """By layer and channel, what its bias lacks in eight bits: the mean of what rounding took, layer after layer."""
    totals: dict[fx.Node, Tensor] = {}
    samples = 0
    for batch in batches:
        tensors = _few(batch)
        plain = _Means(graph, narrow.layers)
        plain.run(*(tensor.clone() for tensor in tensors))
        count = tensors[0].shape[0] if tensors and tensors[0].dim() else 1
        found = _lacking(graph, narrow, plain.found, tensors)
        totals = {node: totals.get(node, torch.zeros(())) + count * off for node, off in found.items()}
        samples += count
        if samples >= ENOUGH_SAMPLES:
            break
    return {node: [float(f"{off:.{DIGITS}g}") for off in (total / max(samples, 1)).tolist()] for node, total in totals.items()}


def _few(batch: list[Tensor]) -> list[Tensor]:
    """Enough samples of a batch."""
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in batch}
    return [tensor[:ENOUGH_SAMPLES] for tensor in batch] if len(sizes) == 1 and None not in sizes else batch


def _lacking(
    graph: fx.GraphModule, narrow: Narrow, means: dict[fx.Node, Tensor], tensors: list[Tensor]
) -> dict[fx.Node, Tensor]:
    found: dict[fx.Node, Tensor] = {}

    def correct(node: fx.Node, result: Tensor) -> Tensor:
        found[node] = torch.nan_to_num(means[node] - _channel_means(result), posinf=0.0, neginf=0.0)
        return found[node]

    _Rounded(graph, narrow, correct).run(*(tensor.clone() for tensor in tensors))
    return found


def rounding_difference(
    graph: fx.GraphModule, narrow: Narrow, corrected: dict[fx.Node, Tensor], tensors: list[Tensor]
) -> float:
    """By how much a graph's outputs in eight bits differ from those in float32."""
    expected = fx.Interpreter(graph).run(*(tensor.clone() for tensor in tensors))
    rounded = _Rounded(graph, narrow, lambda node, _: corrected[node])
    return difference(rounded.run(*(tensor.clone() for tensor in tensors)), expected)


def _channel_means(result: Tensor) -> Tensor:
    """Pictures have their channels in the second place, tokens in the last one."""
    return result.mean((0, 2, 3)) if result.dim() == 4 else result.reshape(-1, result.shape[-1]).mean(0)


def _convolve(step: QuantizedConvolution, x: Tensor) -> Tensor:
    return F.conv2d(x, step.real_weight, step.bias, step.stride, step.padding, step.dilation, step.groups)


def _multiply(layer: nn.Module | None, affine: Affine, x: Tensor) -> Tensor:
    assert layer is not None
    linear = as_linear(layer)
    rows = ByteRows.of(linear.weight, origin_of(linear))
    return F.linear(affine.rounded(x), dequantize_weight(rows.integers, rows.scales), linear.bias)
