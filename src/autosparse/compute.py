"""How sparsified layers compute: dense torch operations, or native kernels that skip the zeros. Owns every forward override."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from autosparse import kernels
from autosparse.kernels import fused_step
from autosparse.kernels.geometry import Convolution
from autosparse.kernels.planner import DENSE, Passes, Planner, Workload
from autosparse.layer import Layer
from autosparse.parametrizations import SoftThreshold, SparseParametrization

MODES = ("auto", "dense", "sparse")
SPARSE = Passes(True, True, True)
FIRST_PLANS = 2  # after this many steps shapes are known and caches are warm


class Route:
    """What the overridden forward of one module follows."""

    def __init__(self, passes: Passes) -> None:
        self.passes = passes
        self.input_shape: torch.Size | None = None

    def wanted(self, module: nn.Module) -> str | Tensor:
        """Where the weight needs a gradient now: "all", "active" or a mask."""
        parts: Any = module.parametrizations["weight"]  # type: ignore[index]
        part: SparseParametrization = parts[0]
        return part.receiving(parts.original) if part.wanted == "mask" else part.wanted


@dataclass(frozen=True)
class LayerPlan:
    """How one layer runs, with the seconds of a step where the planner has measured: all dense, and as it runs."""

    name: str
    shape: tuple[int, ...]
    density: float
    passes: tuple[str, ...]
    dense_seconds: float | None
    seconds: float | None


class Compute:
    """The choice for a whole model: "dense", "sparse" wherever a kernel fits, or "auto": what measured faster."""

    def __init__(self) -> None:
        self.mode = "dense"
        self.planner: Planner | None = None
        self._routed: dict[str, Route] = {}
        self._fused: nn.Module | None = None

    def choose(self, mode: str, layers: Sequence[Layer], model: nn.Module | None = None) -> None:
        """Put forward overrides on the modules that a kernel can serve, or take them off.

        With a model its batch norms, ReLUs and residual sums are fused with its convolutions where they can be.
        """
        if mode not in MODES:
            raise ValueError(f"compute mode {mode!r}; allowed: {', '.join(MODES)}")
        if mode == "sparse" and not kernels.available():
            raise RuntimeError(f'the sparse kernels cannot run here: {kernels.why_not()}; use "auto" or "dense"')
        for layer in layers:
            _unroute(layer)
        if self._fused is not None:
            fused_step.remove(self._fused)
        self.mode, self._routed, self.planner, self._fused = mode, {}, None, None
        if mode == "dense" or not kernels.available():
            return
        self.planner = Planner() if mode == "auto" else None
        for layer in layers:
            if fits(layer):
                self._routed[layer.name] = _route(layer, DENSE if mode == "auto" else SPARSE)
        if mode == "sparse" and not self._routed:
            raise RuntimeError("no sparsified layer is a float32 Linear or ungrouped Conv2d on the CPU: nothing can run sparse")
        if model is not None and self._routed:
            fused_step.install(model)
            self._fused = model

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

    def plans(self, layers: Sequence[Layer], densities: Sequence[float]) -> list[LayerPlan]:
        """How every layer runs now."""
        decisions = self.planner.decisions if self.planner else {}
        found = []
        for layer, density in zip(layers, densities, strict=True):
            route, decision = self._routed.get(layer.name), decisions.get(layer.name)
            passes = tuple(name for name, sparse in route.passes._asdict().items() if sparse) if route else ()
            known = (decision.dense_seconds, decision.seconds) if decision else (None, None)
            found.append(LayerPlan(layer.name, tuple(layer.shape), density, passes, *known))
        return found

    def __str__(self) -> str:
        if self.mode == "dense":
            skip = '; sp.compute("auto") skips them where that is faster' if kernels.available() else ""
            return f"dense compute with torch: the zeros are counted, not skipped{skip}"
        if not kernels.available():
            return f"dense compute with torch: the zeros are counted, not skipped ({kernels.why_not()})"
        passes = [passed for route in self._routed.values() for passed in route.passes]
        spent = "" if self.planner is None else f"; measuring took {self.planner.seconds_spent:.1f} s"
        where = f"of {len(self._routed)} layers skip the zeros ({kernels.instruction_set()} kernels)"
        fused = 0 if self._fused is None else fused_step.count_fused(self._fused)
        norms = f"; {fused} batch norms are fused with their convolutions" if fused else ""
        return f"{sum(passes)} of {len(passes)} passes {where}{norms}{spent}"


def fits(layer: Layer) -> bool:
    """Whether a kernel can serve this layer: a float32 Linear or ungrouped Conv2d on the CPU with its own forward.

    The weight may be an embedding's as well.
    """
    module, stored = layer.places[0].module, layer.stored
    plain = all(place.tensor == "weight" and "forward" not in vars(place.module) for place in layer.places)
    plain = plain and all(isinstance(place.module, nn.Embedding) for place in layer.places[1:])
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
    if isinstance(layer.parametrization, SoftThreshold) and layer.parametrization.threshold.numel() == 1:
        for place in layer.places[1:]:
            place.module.forward = MethodType(_embedding_forward, place.module)
    return route


def _unroute(layer: Layer) -> None:
    module = layer.places[0].module
    if "sparse_route" in vars(module):
        del module.sparse_route, module.forward
        for place in layer.places[1:]:
            vars(place.module).pop("forward", None)


def _linear_forward(self: nn.Linear, x: Tensor) -> Tensor:
    passes = _passes(self, x)
    if passes is None:
        return F.linear(x, self.weight, self.bias)
    wanted, weight = _route_of(self).wanted(self), self.weight
    return kernels.sparse_linear(x, weight, self.bias, wanted, passes)


def _embedding_forward(self: nn.Embedding, tokens: Tensor) -> Tensor:
    """One threshold for all weights: it is enough to take it from the rows that are looked up."""
    parts: Any = self.parametrizations["weight"]  # type: ignore[index]
    rows = F.embedding(
        tokens, parts.original, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
    )
    effective: Tensor = parts[0](rows)
    return effective


def _conv_forward(self: nn.Conv2d, x: Tensor) -> Tensor:
    passes = _passes(self, x)
    if passes is None:
        dense: Tensor = self._conv_forward(x, self.weight, self.bias)
        return dense
    wanted, weight = _route_of(self).wanted(self), self.weight
    return kernels.sparse_conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, wanted, passes)


def _passes(module: nn.Module, x: Tensor) -> Passes | None:
    """The passes to run sparse, or None for an all-dense layer; remembers the input's shape for the planner."""
    route = _route_of(module)
    if not torch.compiler.is_compiling():
        route.input_shape = x.shape
    usable = x.device.type == "cpu" and (x.dtype == torch.float32 or torch.is_autocast_enabled("cpu"))
    return route.passes if usable and any(route.passes) else None


def _route_of(module: nn.Module) -> Route:
    route: Route = module.sparse_route  # type: ignore[assignment]
    return route


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
