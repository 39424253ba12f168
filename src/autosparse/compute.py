"""How sparsified layers compute: dense torch operations, or native kernels that skip the zeros. Owns every forward override."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from autosparse import kernels
from autosparse.kernels.geometry import Convolution
from autosparse.kernels.planner import DENSE, Passes, Planner, Workload
from autosparse.layer import Layer
from autosparse.parametrizations import SparseParametrization

MODES = ("auto", "dense", "sparse")
SPARSE = Passes(True, True, True)
FIRST_PLANS = 2  # after this many steps shapes are known and caches are warm


class Route:
    """What the overridden forward of one module follows."""

    def __init__(self, passes: Passes) -> None:
        self.passes = passes
        self.input_shape: torch.Size | None = None


class Compute:
    """The choice for a whole model: "dense", "sparse" wherever a kernel fits, or "auto": what measured faster."""

    def __init__(self) -> None:
        self.mode = "dense"
        self.planner: Planner | None = None
        self._routed: dict[str, Route] = {}

    def choose(self, mode: str, layers: Sequence[Layer]) -> None:
        """Put forward overrides on the modules that a kernel can serve, or take them off."""
        if mode not in MODES:
            raise ValueError(f"compute mode {mode!r}; allowed: {', '.join(MODES)}")
        if mode == "sparse" and not kernels.available():
            raise RuntimeError(f'the sparse kernels cannot run here: {kernels.why_not()}; use "auto" or "dense"')
        for layer in layers:
            _unroute(layer)
        self.mode, self._routed, self.planner = mode, {}, None
        if mode == "dense" or not kernels.available():
            return
        self.planner = Planner() if mode == "auto" else None
        for layer in layers:
            if fits(layer):
                self._routed[layer.name] = _route(layer, DENSE if mode == "auto" else SPARSE)
        if mode == "sparse" and not self._routed:
            raise RuntimeError("no sparsified layer is a float32 Linear or ungrouped Conv2d on the CPU: nothing can run sparse")

    def plan(self, layers: Sequence[Layer], densities: Sequence[float], rare: bool = False) -> None:
        """Under "auto": decide for every layer and pass, from times measured at its shape and present density.

        `rare`: pruned weights receive gradients at few steps only, so plan for the steps between.
        """
        if self.planner is None:
            return
        for layer, density in zip(layers, densities, strict=True):
            route = self._routed.get(layer.name)
            if route is None or route.input_shape is None:
                continue
            part = layer.parametrization
            wanted = "active" if rare else part.wanted
            wanted_density = part.receiving_density(layer.weight()) if wanted == "mask" else None
            try:
                workload = _workload(layer, route.input_shape)
                route.passes = self.planner.decide(layer.name, workload, density, wanted, wanted_density)
            except ValueError:  # larger than the kernels' indices reach
                route.passes = DENSE

    def __str__(self) -> str:
        if self.mode == "dense":
            skip = '; sp.compute("auto") skips them where that is faster' if kernels.available() else ""
            return f"dense compute with torch: the zeros are counted, not skipped{skip}"
        if not kernels.available():
            return f"dense compute with torch: the zeros are counted, not skipped ({kernels.why_not()})"
        passes = [passed for route in self._routed.values() for passed in route.passes]
        spent = "" if self.planner is None else f"; measuring took {self.planner.seconds_spent:.1f} s"
        where = f"of {len(self._routed)} layers skip the zeros ({kernels.instruction_set()} kernels)"
        return f"{sum(passes)} of {len(passes)} passes {where}{spent}"


def fits(layer: Layer) -> bool:
    """Whether a kernel can serve this layer: a float32 Linear or ungrouped Conv2d on the CPU with its own forward."""
    place = layer.places[0]
    module, stored = place.module, layer.stored
    plain = len(layer.places) == 1 and place.tensor == "weight" and "forward" not in vars(module)
    if not plain or stored.device.type != "cpu" or stored.dtype != torch.float32 or hasattr(stored, "full_tensor"):
        return False
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros"
    return isinstance(module, nn.Linear) and not isinstance(module, NonDynamicallyQuantizableLinear)


def _route(layer: Layer, passes: Passes) -> Route:
    module = layer.places[0].module
    route = Route(passes)
    module.sparse_route = route  # type: ignore[assignment]
    forward = _conv_forward if isinstance(module, nn.Conv2d) else _linear_forward
    module.forward = MethodType(forward, module)
    return route


def _unroute(layer: Layer) -> None:
    module = layer.places[0].module
    if "sparse_route" in vars(module):
        del module.sparse_route, module.forward


def _linear_forward(self: nn.Linear, x: Tensor) -> Tensor:
    passes = _passes(self, x)
    if passes is None:
        return F.linear(x, self.weight, self.bias)
    wanted, weight = _wanted(self), self.weight
    return kernels.sparse_linear(x, weight, self.bias, wanted, passes)


def _conv_forward(self: nn.Conv2d, x: Tensor) -> Tensor:
    passes = _passes(self, x)
    if passes is None:
        dense: Tensor = self._conv_forward(x, self.weight, self.bias)
        return dense
    wanted, weight = _wanted(self), self.weight
    return kernels.sparse_conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, wanted, passes)


def _passes(module: nn.Module, x: Tensor) -> Passes | None:
    """The passes to run sparse, or None for an all-dense layer; remembers the input's shape for the planner."""
    route: Route = module.sparse_route  # type: ignore[assignment]
    if not torch.compiler.is_compiling():
        route.input_shape = x.shape
    usable = x.device.type == "cpu" and (x.dtype == torch.float32 or torch.is_autocast_enabled("cpu"))
    return route.passes if usable and any(route.passes) else None


def _wanted(module: nn.Module) -> str | Tensor:
    parts: Any = module.parametrizations["weight"]  # type: ignore[index]
    part: SparseParametrization = parts[0]
    return part.receiving(parts.original) if part.wanted == "mask" else part.wanted


def _workload(layer: Layer, shape: torch.Size) -> Workload:
    module, threads = layer.places[0].module, torch.get_num_threads()
    if isinstance(module, nn.Linear):
        return Workload(Convolution(1, shape[-1], (1, shape[:-1].numel()), layer.shape[0]), True, threads)
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
