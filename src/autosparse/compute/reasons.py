"""Why a layer computes densely: the true reason, in a few words."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from autosparse import kernels
from autosparse.common.tensors import is_sharded
from autosparse.compute import overrides, routing
from autosparse.compute.overrides import USER, Override
from autosparse.compute.planner import LEAST_WORK, MAX_SPARSE_DENSITY, Planner
from autosparse.layer import Layer

NOT_MEASURED = "not measured yet"
ATTENTION = "attention's own kernel computes it"
COMPILED = "compiled"


def why_dense(layer: Layer, density: float, mode: str, planner: Planner | None, record: Override | None, waits: bool) -> str:
    """Of a layer none of whose passes skips zeros; `waits`: the first plan is still to come."""
    if not layer.attached:
        return "finalized"
    never = _whole_model(mode) or no_kernel(layer)
    if never:
        return never
    if record is None or record.input_shape is None:
        return _no_input(record, waits)
    if density > MAX_SPARSE_DENSITY:
        return f"not yet sparse enough: kernels gain from {1 - MAX_SPARSE_DENSITY:.0%} zeros on"
    work = routing.workload_of(layer, record.input_shape, record.precision).work
    if work < LEAST_WORK:
        return f"too small: {work / 1e6:.2g} million multiply-adds, kernels gain from {LEAST_WORK / 1e6:.0f} million on"
    return "dense measured faster" if planner is not None and layer.name in planner.decisions else NOT_MEASURED


def _whole_model(mode: str) -> str | None:
    if not kernels.available():
        return f"no kernels: {kernels.why_not()}"
    if mode == "dense":
        return 'sp.compute("dense")'
    return "torch.use_deterministic_algorithms is on" if torch.are_deterministic_algorithms_enabled() else None


def no_kernel(layer: Layer) -> str | None:
    """Why no kernel can serve a layer of its kind and place; None if one can."""
    stored = layer.stored
    if stored.device.type != "cpu":
        return f"on {stored.device.type}: the kernels are for CPUs"
    if is_sharded(stored):
        return "sharded over processes"
    if stored.dtype is not torch.float32:
        return f"weights in {str(stored.dtype).removeprefix('torch.')}, the kernels take float32"
    return None if routing.fits(layer) else _odd_kind(layer)


def _odd_kind(layer: Layer) -> str:
    module = layer.places[0].module
    if isinstance(module, NonDynamicallyQuantizableLinear | nn.MultiheadAttention):
        return ATTENTION
    if isinstance(module, nn.RNNBase):
        return "torch's own RNN kernel computes it"
    if isinstance(module, nn.Conv2d) and module.groups > 1:
        return "grouped convolution: no kernel"
    if isinstance(module, nn.Conv2d) and module.padding_mode != "zeros":
        return f"padding_mode {module.padding_mode!r}: no kernel"
    if any(overrides.owner_of(place.module) == USER for place in layer.places):
        return "its forward was replaced"
    is_known = type(module).forward in (nn.Linear.forward, nn.Conv2d.forward)
    return "its weight is shared with other layers" if is_known else f"{layer.kind}: no kernel"


def _no_input(record: Override | None, waits: bool) -> str:
    """Why the shape of its inputs in training is not known."""
    if record is not None and record.under_autocast:
        return _autocast()
    if _has_compiled():
        return COMPILED
    return NOT_MEASURED if waits else "not called in training"


def _autocast() -> str:
    """The last call was under autocast in a type that no kernel takes."""
    if not kernels.available(torch.bfloat16):
        return f"autocast: no bfloat16 kernels for {kernels.instruction_set()}, they need AVX2 or AVX-512"
    return "autocast: the kernels take bfloat16 alone"


def _has_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"]["total"])
