"""How a layer's own forward gives way to the kernels, and how the shapes of its inputs become known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from autosparse import kernels
from autosparse.compute.planner import Passes, Workload
from autosparse.kernels.geometry import Convolution
from autosparse.layer import Layer
from autosparse.parametrizations import SoftThreshold, SparseParametrization


class Route:
    """What the overridden forward of one module follows."""

    def __init__(self, passes: Passes, input_shape: torch.Size | None = None) -> None:
        self.passes = passes
        self._input_shape = input_shape

    @property
    def input_shape(self) -> torch.Size | None:
        """The largest that was seen: the last batch of an epoch may be a small one."""
        return self._input_shape

    @input_shape.setter
    def input_shape(self, shape: torch.Size) -> None:
        self._input_shape = _larger(self._input_shape, shape)

    def wanted(self, module: nn.Module) -> str | Tensor:
        """Where the weight needs a gradient now: "all", "active" or a mask."""
        parts: Any = module.parametrizations["weight"]  # type: ignore[index]
        part: SparseParametrization = parts[0]
        return part.receiving(parts.original) if part.wanted == "mask" else part.wanted


def fits(layer: Layer) -> bool:
    """Whether a kernel can serve this layer: a float32 Linear or ungrouped Conv2d on the CPU with its own forward."""
    stored = layer.stored
    plain = stored.device.type == "cpu" and stored.dtype == torch.float32 and not hasattr(stored, "full_tensor")
    return plain and _is_of_a_kind(layer) and all("forward" not in vars(place.module) for place in layer.places)


def _is_of_a_kind(layer: Layer) -> bool:
    """A layer that the kernels know; its weight may be an embedding's as well."""
    module = layer.places[0].module
    tied = all(isinstance(place.module, nn.Embedding) for place in layer.places[1:])
    if not tied or any(place.tensor != "weight" for place in layer.places):
        return False
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros"
    return isinstance(module, nn.Linear) and not isinstance(module, NonDynamicallyQuantizableLinear)


def watch(layer: Layer) -> None:
    """Note the shape of its inputs in training."""
    if _is_of_a_kind(layer):  # no other: a module with hooks is not fused
        layer.parametrization.input_shape = None
        layer.places[0].module.register_forward_pre_hook(_note_input)


def unwatch(layer: Layer) -> None:
    hooks = layer.places[0].module._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if hook is _note_input]:
        del hooks[key]


def _note_input(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """A compiled model notes nothing: it may not find its modules changed later, and goes on as it was compiled."""
    if torch.compiler.is_compiling() or not module.training or not _counts(*inputs):
        return
    parts: Any = module.parametrizations["weight"]  # type: ignore[index]
    parts[0].input_shape = _larger(parts[0].input_shape, inputs[0].shape)


def _larger(known: torch.Size | None, seen: torch.Size) -> torch.Size:
    return seen if known is None or seen.numel() > known.numel() else known


def _counts(x: Any = None, *_: Any) -> bool:
    """Whether the planner plans for such a call. What is measured is float32: in reduced precision torch may be faster."""
    return isinstance(x, Tensor) and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def put_route(layer: Layer, route: Route) -> Route:
    module = layer.places[0].module
    module.sparse_route = route  # type: ignore[assignment]
    forward = _conv_forward if isinstance(module, nn.Conv2d) else _linear_forward
    module.forward = MethodType(forward, module)
    if isinstance(layer.parametrization, SoftThreshold) and layer.parametrization.threshold.numel() == 1:
        for place in layer.places[1:]:
            place.module.forward = MethodType(_embedding_forward, place.module)
    return route


def unroute(layer: Layer) -> None:
    module = layer.places[0].module
    if "sparse_route" in vars(module):
        del module.sparse_route, module.forward
        for place in layer.places[1:]:
            vars(place.module).pop("forward", None)


def _linear_forward(self: nn.Linear, input: Tensor) -> Tensor:
    passes = _passes(self, input)
    if passes is None:
        return F.linear(input, self.weight, self.bias)
    wanted, weight = _route_of(self).wanted(self), self.weight
    return kernels.sparse_linear(input, weight, self.bias, wanted, passes)


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
    wanted, weight = _route_of(self).wanted(self), self.weight
    return kernels.sparse_conv2d(input, weight, self.bias, self.stride, self.padding, self.dilation, wanted, passes)


def _passes(module: nn.Module, x: Tensor) -> Passes | None:
    """The passes to run sparse, or None for an all-dense layer; remembers a training input's shape for the planner."""
    route = _route_of(module)
    if not torch.compiler.is_compiling() and _counts(x):
        route.input_shape = x.shape
    usable = x.device.type == "cpu" and (x.dtype == torch.float32 or torch.is_autocast_enabled("cpu"))
    return route.passes if usable and any(route.passes) else None


def _route_of(module: nn.Module) -> Route:
    route: Route = module.sparse_route  # type: ignore[assignment]
    return route


def workload_of(layer: Layer, shape: torch.Size) -> Workload:
    module, threads = layer.places[0].module, torch.get_num_threads()
    if isinstance(module, nn.Linear):
        # sequences differ in length from batch to batch: all of about the same size are one workload
        rows = 2 ** round(math.log2(max(1, shape[:-1].numel())))
        return Workload(Convolution(1, shape[-1], (1, rows), layer.shape[0]), True, threads)
    assert isinstance(module, nn.Conv2d)
    images = 1 if len(shape) == 3 else shape[0]
    padding = tuple(module._reversed_padding_repeated_twice[3::-2]) if isinstance(module.padding, str) else module.padding
    conv = Convolution(
        images, layer.shape[1], (shape[-2], shape[-1]), layer.shape[0], (layer.shape[2], layer.shape[3]),
        _pair(module.stride), _pair(padding), _pair(module.dilation),
    )  # fmt: skip
    return Workload(conv, False, threads)


def _pair(value: Sequence[int]) -> tuple[int, int]:
    return int(value[0]), int(value[1])
