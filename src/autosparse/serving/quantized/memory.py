"""A served int8 model holds no float32 copy of the weights that became integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autosparse.serving.capture import Captured
from autosparse.serving.kinds import is_convolution, is_linear
from autosparse.serving.native import NativeModule
from autosparse.serving.quantized.linear import ByteLinear
from autosparse.serving.quantized.region import ByteRegion
from autosparse.serving.quantized.steps import ByteRows, QuantizedConvolution


@dataclass(frozen=True, eq=False)
class PlainRows:
    """A weight of the user's model that is served in int8."""

    rows: ByteRows
    shape: tuple[int, ...]
    by_row: bool  # whether its first side is the output channels; transformers' Conv1D has them last

    def weight(self) -> Tensor:
        """In float32, rounded: its integers and scales are the same."""
        plain = self.rows.plain_weight()
        return plain.reshape(self.shape) if self.by_row else plain.t().contiguous()


def holders(model: nn.Module) -> Counter[int]:
    """How many modules hold a parameter, by its identity."""
    held = (parameter for module in model.modules() for parameter in module._parameters.values())
    return Counter(id(parameter) for parameter in held if parameter is not None)


def without_floats(
    state: Mapping[str, Tensor],
    layers: Mapping[str, nn.Module],
    held: Mapping[int, int],
    served: nn.Module,
    in_torch: Collection[str],
) -> dict[str, Tensor | PlainRows]:
    """The tensors of a model without the weights that only int8 layers hold; a tied one is one object under its names."""
    rows = {name: found for part in served.modules() for name, found in _byte_rows(part).items()}
    in_float = _names(served, in_bytes=False) | set(in_torch)
    replaced: dict[int, PlainRows] = {}
    in_bytes: Counter[int] = Counter()  # layers that hold a weight and compute in int8 alone
    for name in rows.keys() - in_float:
        layer = layers.get(name)
        weight = None if layer is None else layer._parameters.get("weight")
        if weight is not None and (is_linear(layer) or is_convolution(layer)):
            by_row = isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
            replaced[id(weight)] = PlainRows(rows[name], tuple(weight.shape), by_row)
            in_bytes[id(weight)] += 1
    gone = {weight for weight, count in in_bytes.items() if count == held[weight]}
    return {name: replaced[id(tensor)] if id(tensor) in gone else tensor for name, tensor in state.items()}


def forget_replaced(model: nn.Module, served: nn.Module) -> None:
    """Empty the plain weights of layers that became integers, in the model behind a served one; no call can need them."""
    integers = _names(served, in_bytes=True)
    captured = [part for part in served.modules() if isinstance(part, Captured)]
    live = {id(parameter) for parameter in served.parameters()}
    for prefix, plain in [("", model), *((part.name if part is not served else "", part.plain) for part in captured)]:
        for name, layer in plain.named_modules():
            full = f"{prefix}.{name}".strip(".") if prefix else name
            if full in integers and (is_linear(layer) or is_convolution(layer)):
                _empty(layer, live)
    for part in captured:
        if _names(part, in_bytes=True):
            part.__dict__["forgotten"] = True


def _byte_rows(part: nn.Module) -> dict[str, ByteRows]:
    """The int8 weights of a served part, by layer."""
    if isinstance(part, ByteLinear):
        return {part.name: part.rows}
    if not isinstance(part, ByteRegion):
        return {}
    convolutions = [step for step in part.region.steps if isinstance(step, QuantizedConvolution)]
    return {step.name: step.rows for step in convolutions if step.rows is not None}


def _names(served: nn.Module, in_bytes: bool) -> set[str]:
    """The layers that the engines for narrow numbers compute, or those that the one for floats does."""
    native = (part for part in served.modules() if isinstance(part, NativeModule))
    return {name for part in native if isinstance(part, ByteLinear | ByteRegion) == in_bytes for name in part.layer_names()}


def _empty(layer: nn.Module, live: set[int]) -> None:
    weight = layer._parameters.get("weight")
    if weight is not None and id(weight) not in live:
        layer._parameters["weight"] = nn.Parameter(torch.empty(0), requires_grad=False)
