"""Which layers stay in torch, and why."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from autosparse.layer import is_transposed_linear
from autosparse.serving.kinds import is_convolution, is_linear
from autosparse.serving.linear import TORCH
from autosparse.serving.native import LayerChoice, NativeModule
from autosparse.serving.preparation import Preparation
from autosparse.serving.regions import why_not

SHOWN_NAMES = 3


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model that multiply with weights."""
    return {name: module for name, module in model.named_modules() if _is_layer(module)}


def layers_in_torch(layers: dict[str, nn.Module], served: nn.Module, preparation: Preparation) -> list[LayerChoice]:
    """The layers of the plain model that neither the engine nor a packed layer computes in the served one."""
    replaced = {name for part in served.modules() if isinstance(part, NativeModule) for name in part.layer_names()}
    rows = []
    for name, module in layers.items():
        holder = layers.get(name.rpartition(".")[0])
        weights = [parameter for key, parameter in module.named_parameters(recurse=False) if "weight" in key]
        if not weights or name in replaced:
            continue
        reason = preparation.reasons.get(name) or _why(module)
        if preparation.engine is None:
            reason = "there is no native library"
        elif isinstance(holder, nn.MultiheadAttention):
            reason = computed_by(holder)
        count = sum(weight.numel() for weight in weights)
        density = sum(int(weight.count_nonzero()) for weight in weights) / max(count, 1)
        rows.append(LayerChoice(name, type(module).__name__, count, density, TORCH, reason=reason))
    return rows


def computed_by(parent: nn.Module) -> str:
    """The reason of layers that are read and never called."""
    return f"{type(parent).__name__} computes with its weight itself"


def not_called(parent: nn.Module) -> str:
    """The reason of layers that the example does not reach, or that are read."""
    return f"the example does not call it; {type(parent).__name__} may compute with its weight itself"


def sentence(rows: list[LayerChoice], layers: int) -> str:
    """What stays in torch, in one sentence."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.reason, []).append(row.name or row.kind)
    parts = [f"{listed(layers_of)} ({reason})" for reason, layers_of in names.items()]
    return f"{len(rows)} of {layers} layers stay in torch: {'; '.join(parts)}"


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def _is_layer(module: nn.Module) -> bool:
    kinds = (nn.Linear, nn.Bilinear, _ConvNd, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
    return isinstance(module, kinds) or is_transposed_linear(module)


def _why(module: nn.Module) -> str:
    """From what the layer is."""
    if isinstance(module, _ConvTransposeNd):
        return "transposed convolutions have no kernel"
    if isinstance(module, nn.Conv3d):
        return "convolutions in three dimensions have no kernel"
    if isinstance(module, nn.MultiheadAttention):
        return "attention projects its inputs in torch's own kernel"
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "recurrent layers have no kernel"
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return why_not(module) or "the example brings it no batch of float32 inputs"
    if is_linear(module) or is_convolution(module):
        return "the example does not call it"
    return f"{type(module).__name__} computes in its own way, or has hooks"
