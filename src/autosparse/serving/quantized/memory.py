"""A served int8 model holds no float32 copy of the weights that became integers."""

from __future__ import annotations

import torch
from torch import nn

from autosparse.serving.capture import Captured
from autosparse.serving.kinds import is_convolution, is_linear
from autosparse.serving.quantized.linear import ByteLinear
from autosparse.serving.quantized.region import ByteRegion


def forget_replaced(model: nn.Module, served: nn.Module) -> None:
    """Empty the plain weights of layers that became integers, in the model behind a served one; no call can need them."""
    integers = {name for part in served.modules() for name in _names(part)}
    captured = [part for part in served.modules() if isinstance(part, Captured)]
    live = {id(parameter) for parameter in served.parameters()}
    for prefix, plain in [("", model), *((part.name if part is not served else "", part.plain) for part in captured)]:
        for name, layer in plain.named_modules():
            full = f"{prefix}.{name}".strip(".") if prefix else name
            if full in integers and (is_linear(layer) or is_convolution(layer)):
                _empty(layer, live)
    for part in captured:
        if any(_names(inner) for inner in part.modules()):
            part.__dict__["forgotten"] = True


def _names(part: nn.Module) -> list[str]:
    if isinstance(part, ByteRegion):
        return part.layer_names()
    return [part.name] if isinstance(part, ByteLinear) else []


def _empty(layer: nn.Module, live: set[int]) -> None:
    weight = layer._parameters.get("weight")
    if weight is not None and id(weight) not in live:
        layer._parameters["weight"] = nn.Parameter(torch.empty(0), requires_grad=False)
