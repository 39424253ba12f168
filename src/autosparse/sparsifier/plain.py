"""Between a sparsified model and a plain one: dense keys in, dense keys out, zeros baked in."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from autosparse.common.tensors import assign, is_sharded, precise, whole
from autosparse.common.warnings import warn
from autosparse.compute import activation_sparsity
from autosparse.layer import Layer
from autosparse.quantization.fake import plain_entries

Orders = dict[nn.Module, list[str]]


def parameter_orders(layers: Sequence[Layer]) -> Orders:
    """The order of every module's parameters before anything is attached, so that finalize can restore it."""
    return {place.module: list(place.module._parameters) for layer in layers for place in layer.places}


def state(model: nn.Module, layers: Sequence[Layer], keys: Sequence[str]) -> dict[str, Tensor]:
    """A plain state_dict of the model: effective weights under their dense keys, in the order of `keys`."""
    places = {place.key: layer for layer in layers for place in layer.places}
    effective = {layer.name: layer.effective().clone() for layer in layers}
    result: dict[str, Tensor] = {}
    copies: dict[int, Any] = {}  # a tied tensor stays one tensor
    for key, value in plain_entries(model, rounded=True).items():
        prefix, _, rest = key.partition("parametrizations.")
        if not rest or prefix + rest.split(".")[0] not in places:
            if id(value) not in copies:
                copies[id(value)] = whole(value.detach()).clone() if isinstance(value, Tensor) else copy.deepcopy(value)
            result[key] = copies[id(value)]
        elif rest.endswith(".original"):
            plain_key = prefix + rest.split(".")[0]
            result[plain_key] = effective[places[plain_key].name]
    return {**{key: result[key] for key in keys if key in result}, **result}


def load(model: nn.Module, layers: Sequence[Layer], state_dict: Mapping[str, Tensor]) -> None:
    """Load a plain state_dict into a sparsified model; nothing is written unless everything fits."""
    targets = {place.key: layer for layer in layers for place in layer.places}
    others = {key: value for key, value in plain_entries(model, rounded=False).items() if not _belongs(key, targets)}
    expected = {
        **{key: layer.shape for key, layer in targets.items()},
        **{key: value.shape if isinstance(value, Tensor) else None for key, value in others.items()},
    }
    missing, extra = sorted(expected.keys() - state_dict.keys()), sorted(state_dict.keys() - expected.keys())
    wrong = [
        f"{key} has shape {tuple(state_dict[key].shape)}, the model's is {tuple(shape)}"
        for key, shape in expected.items()
        if shape is not None and key in state_dict and state_dict[key].shape != shape
    ]
    if missing or extra or wrong:
        parts = (
            [f"missing {', '.join(missing[:5])}"] * bool(missing)
            + [f"unknown {', '.join(extra[:5])}"] * bool(extra)
            + wrong[:5]
        )
        raise ValueError(f"this is not a plain checkpoint of the model: {'; '.join(parts)}")
    for key, layer in targets.items():
        value = state_dict[key].to(layer.stored.device, layer.stored.dtype)
        assign(layer.stored.detach(), layer.parametrization.right_inverse(value))
    for key, target in others.items():
        if isinstance(target, Tensor):
            assign(target, state_dict[key].to(target.device))
        else:  # from get_extra_state: only its module knows how to take it back
            model.load_state_dict({key: state_dict[key]}, strict=False)


def _belongs(key: str, targets: Mapping[str, Layer]) -> bool:
    prefix, _, rest = key.partition("parametrizations.")
    return bool(rest) and prefix + rest.split(".")[0] in targets


def harden(layers: Sequence[Layer]) -> None:
    """Before the zeros are baked in: fix soft masks, and let inputs be whole again."""
    for layer in layers:
        layer.parametrization.harden(layer.weight())
        for place in layer.places:
            activation_sparsity.detach(place.module)


def bake(layers: Sequence[Layer], orders: Orders, masks: Sequence[Tensor] | None = None) -> None:
    """Remove all parametrizations and write the effective weights, once per storage, with the zeros of `masks` as well."""
    if any(is_sharded(layer.stored) for layer in layers):
        raise RuntimeError(
            "a sharded model cannot be made plain in place: build a plain one on every rank and call sp.finalize(into=plain)"
        )
    effective = [layer.effective() for layer in layers]
    if masks is not None:
        effective = [value.masked_fill(~mask.to(value.device), 0) for value, mask in zip(effective, masks, strict=True)]
    for layer in layers:
        layer.detach()
    for layer, value in zip(layers, effective, strict=True):
        with torch.no_grad():
            layer.stored.copy_(value)
    for module, order in orders.items():
        module._parameters.update({name: module._parameters.pop(name) for name in order})
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()


@dataclass(frozen=True)
class Fingerprint:
    """Thresholds and batch-norm counters at the end of an epoch: enough to notice an edit by hand."""

    step: int
    thresholds: tuple[float, ...]
    norm_batches: int

    def warn_if_edited(self, model: nn.Module, layers: Sequence[Layer], step: int) -> None:
        now = fingerprint(model, layers, step)
        if step != self.step or now.thresholds == self.thresholds or now.norm_batches != self.norm_batches:
            return
        has_norms = any(isinstance(module, _BatchNorm) for module in model.modules())
        advice = "run autosparse.recalibrate(model, batches) before finalize" if has_norms else "measure its accuracy again"
        warn(f"thresholds were edited after training: every surviving weight changed with them; {advice}")


def fingerprint(model: nn.Module, layers: Sequence[Layer], step: int) -> Fingerprint:
    values = [layer.parametrization.threshold_values() for layer in layers]
    sums = [precise(value).sum() for value in values if value is not None]
    thresholds = torch.stack(sums).tolist() if sums else []
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.num_batches_tracked is not None]
    batches = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
    return Fingerprint(step, tuple(thresholds), int(torch.stack(batches).sum()) if batches else 0)
