"""How sparsified layers compute: dense torch operations, or native kernels that skip the zeros. Owns every forward override."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from autosparse import kernels
from autosparse.kernels import fused_step
from autosparse.kernels.fusion import fused_convolutions
from autosparse.kernels.geometry import Convolution
from autosparse.kernels.planner import DENSE, Passes, Planner, Workload
from autosparse.layer import Layer
from autosparse.parametrizations import SoftThreshold, SparseParametrization
from autosparse.tensors import from_first_rank, leads, ranks

MODES = ("auto", "dense", "sparse")
SPARSE = Passes(True, True, True)
COUNTED = "dense compute with torch: the zeros are counted, not skipped"


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
        if self._input_shape is None or shape.numel() > self._input_shape.numel():
            self._input_shape = shape

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
    """The choice for a whole model: "dense", "sparse" wherever a kernel fits, or "auto": what measured faster.

    Under "auto" a module is left as it was found unless a pass of it runs sparse.
    """

    def __init__(self) -> None:
        self.mode = "dense"
        self.fuse = True  # batch norms, ReLUs and residual sums with the convolutions around them
        self.planner: Planner | None = None
        self.first_plan_is_due = False  # after the coming step, when the shapes of inputs are known
        self._shapes: dict[str, torch.Size] = {}
        self._routed: dict[str, Route] = {}
        self._fused: nn.Module | None = None

    def choose(self, mode: str, layers: Sequence[Layer], model: nn.Module) -> None:
        """Begin anew in a mode."""
        if mode not in MODES:
            raise ValueError(f"compute mode {mode!r}; allowed: {', '.join(MODES)}")
        if mode == "sparse" and not kernels.available():
            raise RuntimeError(f'the sparse kernels cannot run here: {kernels.why_not()}; use "auto" or "dense"')
        self._follow({}, layers, model)
        for layer in layers:
            _unwatch(layer)
        self.mode, self._shapes, self.planner, self.first_plan_is_due = mode, {}, None, mode == "auto"
        if mode == "sparse":
            self._follow({layer.name: SPARSE for layer in layers if fits(layer)}, layers, model)
            if not self._routed:
                raise RuntimeError(
                    "no sparsified layer is a float32 Linear or ungrouped Conv2d on the CPU: nothing can run sparse"
                )
        elif mode == "auto" and kernels.available():
            self.planner = Planner()
            for layer in layers:
                _watch(layer)

    def plan(self, layers: Sequence[Layer], densities: Sequence[float], model: nn.Module, rare: bool = False) -> None:
        """Under "auto": decide for every layer and pass, from times measured at its shape and its present density.

        `rare`: pruned weights receive gradients at few steps only, so plan for the steps between. All ranks follow rank 0.
        """
        if self.mode != "auto":
            return
        self.first_plan_is_due = False
        if layers[0].stored.device.type != "cpu":
            return
        self._know(self._seen(layers), layers)
        found = {}
        if self.planner is not None and leads() and not torch.are_deterministic_algorithms_enabled():
            fusible = cache(partial(fused_convolutions, model))  # traced once, and only if a convolution may run sparse
            for layer, density in zip(layers, densities, strict=True):
                if layer.name in self._shapes:
                    found[layer.name] = self._decide(layer, density, rare, fusible)
        if ranks() > 1:
            planned = None if self.planner is None else self.planner.state_dict()
            found, shapes, planned = from_first_rank((found, self._shapes, planned), layers[0].stored.device)
            self._know(shapes, layers)
            if self.planner is not None and planned is not None:
                self.planner.load_state_dict(planned)
        if self.planner is not None:
            self._follow(found, layers, model)

    def _know(self, shapes: dict[str, torch.Size], layers: Sequence[Layer]) -> None:
        """The shapes of inputs: layers that have one need not be watched, and can be fused, as nothing hooks into them."""
        self._shapes = shapes
        for layer in layers:
            if layer.name in shapes:
                _unwatch(layer)

    def _seen(self, layers: Sequence[Layer]) -> dict[str, torch.Size]:
        """The input shapes that are known of layers which a kernel can serve."""
        found = {**self._shapes}
        for layer in layers:
            route, noted = self._routed.get(layer.name), layer.parametrization.input_shape
            if route is not None and route.input_shape is not None:
                found[layer.name] = route.input_shape
            elif noted is not None and fits(layer):
                found[layer.name] = noted
        return found

    def _decide(self, layer: Layer, density: float, rare: bool, fusible: Callable[[], set[nn.Module]]) -> Passes:
        assert self.planner is not None
        part = layer.parametrization
        wanted = "active" if rare else part.wanted
        wanted_density = part.receiving_density(layer.weight()) if wanted == "mask" else None
        try:
            workload = _workload(layer, self._shapes[layer.name])
            if self._fuses() and not workload.linear and self.planner.considers(workload, density):
                workload = replace(workload, fused=layer.places[0].module in fusible())
            return self.planner.decide(layer.name, workload, density, wanted, wanted_density)
        except ValueError:  # larger than the kernels' indices reach
            return DENSE

    def _follow(self, passes: Mapping[str, Passes], layers: Sequence[Layer], model: nn.Module) -> None:
        """Put forward overrides where a pass is sparse, and take the others off."""
        for layer in layers:
            chosen = passes.get(layer.name)
            if chosen is None or not any(chosen):
                if self._routed.pop(layer.name, None):
                    _unroute(layer)
            elif layer.name in self._routed:
                self._routed[layer.name].passes = chosen
            else:
                self._routed[layer.name] = _route(layer, Route(chosen, self._shapes.get(layer.name)))
        if self._fuses() and any(any(chosen) for chosen in passes.values()):
            if self._fused is None:
                fused_step.install(model)
            fused_step.renew(model)
            self._fused = model
        elif self._fused is not None:
            fused_step.remove(self._fused)
            self._fused = None

    def _fuses(self) -> bool:
        """Without vector instructions the steps around a convolution are faster in torch: under "auto" they are left there."""
        return self.fuse and not (self.mode == "auto" and kernels.instruction_set() == "portable")

    def state_dict(self) -> dict[str, Any]:
        """What was measured and decided, in plain values; a run that goes on from it computes in the same way."""
        return {
            "threads": torch.get_num_threads(),
            "kernels": kernels.instruction_set(),
            "first_plan_is_due": self.first_plan_is_due,
            "shapes": {name: list(shape) for name, shape in self._shapes.items()},
            "passes": {name: list(route.passes) for name, route in self._routed.items()},
            "planner": None if self.planner is None else self.planner.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], layers: Sequence[Layer], model: nn.Module) -> None:
        """Compute as the saved run did; with other threads or kernels it is measured anew in the next steps."""
        if self.planner is None and self.mode == "auto":  # nothing is measured, but ranks that can measure ask all others
            self.first_plan_is_due = state["first_plan_is_due"]
        if self.planner is None or state["planner"] is None:
            return
        # ranks plan together or not at all: in a group each takes what was saved
        same = state["kernels"] == kernels.instruction_set() and (ranks() > 1 or state["threads"] == torch.get_num_threads())
        if not same:
            self.choose("auto", layers, model)
            return
        self.planner.load_state_dict(state["planner"])
        self.first_plan_is_due = state["first_plan_is_due"]
        self._know({name: torch.Size(shape) for name, shape in state["shapes"].items()}, layers)
        known = {layer.name for layer in layers if layer.name in self._routed or fits(layer)}
        self._follow({name: Passes(*each) for name, each in state["passes"].items() if name in known}, layers, model)

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
        passes = [passed for route in self._routed.values() for passed in route.passes]
        if not any(passes):
            return f"{COUNTED}{self._why_dense()}"
        served = len({*self._routed, *self._shapes})
        where = f"of {served} layers skip the zeros ({kernels.instruction_set()} kernels)"
        fused = 0 if self._fused is None else fused_step.count_fused(self._fused)
        norms = f"; {fused} batch norms are fused with their convolutions" if fused else ""
        spent = "" if self.planner is None else f"; measuring took {self.planner.seconds_spent:.1f} s"
        return f"{sum(passes)} of {served * len(Passes._fields)} passes {where}{norms}{spent}"

    def _why_dense(self) -> str:
        if not kernels.available():
            return f" ({kernels.why_not()})"
        if self.mode == "dense":
            return '; sp.compute("auto") skips them where that is faster'
        if torch.are_deterministic_algorithms_enabled():
            return " (torch.use_deterministic_algorithms is on)"
        if self.planner is not None and self.planner.decisions:
            return f" (dense measured faster in {self.planner.seconds_spent:.1f} s)"
        return " (layers are measured once they are sparse, if they are large enough to gain)"


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


def _watch(layer: Layer) -> None:
    """Note the shape of its inputs in training."""
    module = layer.places[0].module
    if isinstance(module, nn.Linear | nn.Conv2d) and layer.places[0].tensor == "weight":
        layer.parametrization.input_shape = None
        module.register_forward_pre_hook(_note_input)


def _unwatch(layer: Layer) -> None:
    hooks = layer.places[0].module._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if hook is _note_input]:
        del hooks[key]


def _note_input(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    """A compiled model notes nothing: it may not find its modules changed later, and goes on as it was compiled."""
    if torch.compiler.is_compiling() or not module.training or not _counts(*inputs):
        return
    parts: Any = module.parametrizations["weight"]  # type: ignore[index]
    part, shape = parts[0], inputs[0].shape
    if part.input_shape is None or shape.numel() > part.input_shape.numel():
        part.input_shape = shape


def _counts(x: Any = None, *_: Any) -> bool:
    """Whether the planner plans for such a call. What is measured is float32: in reduced precision torch may be faster."""
    return isinstance(x, Tensor) and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def _route(layer: Layer, route: Route) -> Route:
    module = layer.places[0].module
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
    """The passes to run sparse, or None for an all-dense layer; remembers a training input's shape for the planner."""
    route = _route_of(module)
    if not torch.compiler.is_compiling() and _counts(x):
        route.input_shape = x.shape
    usable = x.device.type == "cpu" and (x.dtype == torch.float32 or torch.is_autocast_enabled("cpu"))
    return route.passes if usable and any(route.passes) else None


def _route_of(module: nn.Module) -> Route:
    route: Route = module.sparse_route  # type: ignore[assignment]
    return route


def _workload(layer: Layer, shape: torch.Size) -> Workload:
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
