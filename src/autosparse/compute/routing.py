"""How a layer's own forward gives way to the kernels, and how the shapes of its inputs become known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from autosparse import kernels
from autosparse.compute import overrides
from autosparse.compute.formats import is_channels_last
from autosparse.compute.overrides import SPARSE, Override
from autosparse.compute.plain_modules import computes_as
from autosparse.compute.planner import BFLOAT16, FLOAT32, Passes, Workload
from autosparse.kernels.geometry import Convolution
from autosparse.kernels.memory import read_briefly
from autosparse.layer import Layer
from autosparse.parametrizations import SoftThreshold, SparseParametrization


def fits(layer: Layer) -> bool:
    """Whether a kernel can serve this layer: a float32 Linear or ungrouped Conv2d on the CPU with its own forward."""
    stored = layer.stored
    plain = stored.device.type == "cpu" and stored.dtype == torch.float32 and not hasattr(stored, "full_tensor")
    return plain and _has_kernel(layer) and all(overrides.owner_of(place.module) in (None, SPARSE) for place in layer.places)


def _has_kernel(layer: Layer) -> bool:
    """Whether the kernels know such a layer; its weight may be an embedding's as well."""
    module = layer.places[0].module
    tied = all(computes_as(place.module, nn.Embedding) for place in layer.places[1:])
    if not tied or any(place.tensor != "weight" for place in layer.places):
        return False
    if isinstance(module, nn.Conv2d):
        return computes_as(module, nn.Conv2d) and module.groups == 1 and module.padding_mode == "zeros"
    return computes_as(module, nn.Linear) and not isinstance(module, NonDynamicallyQuantizableLinear)


def watch(layer: Layer) -> Override | None:
    """Note the shape of its inputs in training, if a kernel may serve it."""
    module = layer.places[0].module
    if not _has_kernel(layer) or overrides.owner_of(module) is not None:  # a hook would keep it from being fused
        return None
    module.register_forward_pre_hook(_note_input)
    return overrides.follow(module)


def unwatch(layer: Layer) -> None:
    hooks = layer.places[0].module._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if hook is _note_input]:
        del hooks[key]


def _note_input(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    override = overrides.override_of(module)
    # A compiled model notes nothing: its modules may not change later, so it goes on as it was compiled.
    if override is None or torch.compiler.is_compiling() or not module.training:
        return
    precision = precision_now()
    if precision is not None and _is_training_call(*inputs):
        override.note_shape(inputs[0].shape, precision)
    elif precision is None and torch.is_grad_enabled():
        override.under_autocast = True


def _is_training_call(x: Any = None, *_: Any) -> bool:
    return isinstance(x, Tensor) and torch.is_grad_enabled()


def precision_now() -> str | None:
    """In which the kernels would compute; None under autocast in a type that they do not take."""
    if not torch.is_autocast_enabled("cpu"):
        return FLOAT32
    is_taken = torch.get_autocast_dtype("cpu") is torch.bfloat16 and kernels.available(torch.bfloat16)
    return BFLOAT16 if is_taken else None


def override(layer: Layer, passes: Passes, precision: str | None = None) -> Override:
    """Let these passes of a layer run on the kernels, in calls of one precision or in all."""
    module = layer.places[0].module
    record = overrides.take(module, SPARSE, _conv_forward if isinstance(module, nn.Conv2d) else _linear_forward)
    record.passes, record.planned_precision = passes, precision
    part = layer.parametrization
    if isinstance(part, SoftThreshold) and part.threshold.numel() == 1 and part.rows == 1:
        for place in layer.places[1:]:
            overrides.take(place.module, SPARSE, _embedding_forward)
    return record


def release(layer: Layer) -> None:
    """Let the layer run by torch."""
    for place in layer.places:
        overrides.release(place.module, SPARSE)


def forget(layer: Layer) -> None:
    """Leave the layer's modules as they were found."""
    unwatch(layer)
    release(layer)
    for place in layer.places:
        overrides.forget(place.module)


def gradient_entries(module: nn.Module) -> str | Tensor:
    """Where the weight needs a gradient now: "all", "active" or a mask."""
    parts: Any = module.parametrizations["weight"]  # type: ignore[index]
    part: SparseParametrization = parts[0]
    return part.gradient_mask(parts.original) if part.gradient_entries == "mask" else part.gradient_entries


def weight_for(module: nn.Module, passes: Passes) -> Tensor:
    """The effective weight; where the input's gradient skips zeros too, it is dropped before that pass."""
    weight: Tensor = read_briefly(module) if passes.input else module.weight  # type: ignore[assignment]
    return weight


def _linear_forward(self: nn.Linear, input: Tensor) -> Tensor:
    passes = _passes(self, input)
    if passes is None:
        return F.linear(input, self.weight, self.bias)
    entries, weight = gradient_entries(self), weight_for(self, passes)
    return kernels.sparse_linear(input, weight, self.bias, entries, passes)


def _embedding_forward(self: nn.Embedding, input: Tensor) -> Tensor:
    """One threshold for all weights: it is enough to take it from the rows that are looked up."""
    parts: Any = self.parametrizations["weight"]  # type: ignore[index]
    rows = F.embedding(
        input, parts.original, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
    )
    effective: Tensor = parts[0](rows)
    return effective


def _conv_forward(self: nn.Conv2d, input: Tensor) -> Tensor:
    passes = _passes(self, input)
    if passes is None:
        dense: Tensor = self._conv_forward(input, self.weight, self.bias)
        return dense
    entries, weight = gradient_entries(self), weight_for(self, passes)
    result = kernels.sparse_conv2d(input, weight, self.bias, self.stride, self.padding, self.dilation, entries, passes)
    return result.contiguous() if _is_contiguous_in_torch(self, input, weight) else result


def _is_contiguous_in_torch(module: nn.Module, x: Tensor, weight: Tensor) -> bool:
    """Whether torch's result would be contiguous, and somebody may rely on it."""
    record = overrides.override_of(module)
    asked = "torch" if record is None else record.result_format
    return asked != "any" and not is_channels_last(weight) and (asked == "weight" or not is_channels_last(x))


def _passes(module: nn.Module, x: Tensor) -> Passes | None:
    """The passes to run sparse, or None for an all-dense layer; notes a training input's shape for the planner."""
    record = overrides.override_of(module)
    if record is None:  # the user kept our forward, and has put it back
        return None
    precision = precision_now()
    if precision is not None and not torch.compiler.is_compiling() and _is_training_call(x):
        record.note_shape(x.shape, precision)
    usable = x.device.type == "cpu" and (x.dtype == torch.float32 or torch.is_autocast_enabled("cpu"))
    passes = record.passes_in(precision)
    return passes if usable and any(passes) else None


def workload_of(layer: Layer, shape: torch.Size, precision: str = FLOAT32) -> Workload:
    module, threads = layer.places[0].module, torch.get_num_threads()
    if isinstance(module, nn.Linear):
        # sequences differ in length from batch to batch: all of about the same size are one workload
        rows = 2 ** round(math.log2(max(1, shape[:-1].numel())))
        return Workload(Convolution(1, shape[-1], (1, rows), layer.shape[0]), True, threads, precision=precision)
    assert isinstance(module, nn.Conv2d)
    images = 1 if len(shape) == 3 else shape[0]
    padding = tuple(module._reversed_padding_repeated_twice[3::-2]) if isinstance(module.padding, str) else module.padding
    conv = Convolution(
        images, layer.shape[1], (shape[-2], shape[-1]), layer.shape[0], (layer.shape[2], layer.shape[3]),
        pair(module.stride), pair(padding), pair(module.dilation),
    )  # fmt: skip
    return Workload(conv, False, threads, precision=precision)


def pair(value: Sequence[int] | str) -> tuple[int, int]:
    return int(value[0]), int(value[1])
