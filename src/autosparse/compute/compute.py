"""How sparsified layers compute: dense torch operations, or native kernels that skip the zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from autosparse import kernels
from autosparse.common.ranks import from_first_rank, leads, ranks
from autosparse.compute import fused_step
from autosparse.compute.fusion import fused_convolutions
from autosparse.compute.planner import DENSE, Passes, Planner
from autosparse.compute.routing import Route, fits, put_route, unroute, unwatch, watch, workload_of
from autosparse.layer import Layer

MODES = ("auto", "dense", "sparse")
SPARSE = Passes(True, True, True)
COUNTED = "dense compute with torch: the zeros are counted, not skipped"


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
            unwatch(layer)
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
                watch(layer)

    def plan(self, layers: Sequence[Layer], densities: Sequence[float], model: nn.Module, rare: bool = False) -> None:
        """Under "auto": decide for every layer and pass, from times measured at its shape and its present density.

        `rare`: pruned weights receive gradients at few steps only, so plan for the steps between. All ranks follow rank 0.
        """
        if self.mode != "auto":
            return
        self.first_plan_is_due = False
        self._know(self._seen(layers), layers)
        if layers[0].stored.device.type != "cpu":
            return
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
            if layer.name in shapes or layer.parametrization.input_shape is not None:
                unwatch(layer)

    def _seen(self, layers: Sequence[Layer]) -> dict[str, torch.Size]:
        """The input shapes that are known of layers which a kernel can serve."""
        found = {**self._shapes}
        for layer in layers:
            route, noted = self._routed.get(layer.name), layer.parametrization.input_shape
            if route is not None and route.input_shape is not None:
                found[layer.name] = route.input_shape
            elif noted is not None and layer.name not in found and fits(layer):
                found[layer.name] = noted
        return found

    def _decide(self, layer: Layer, density: float, rare: bool, fusible: Callable[[], set[nn.Module]]) -> Passes:
        assert self.planner is not None
        part = layer.parametrization
        wanted = "active" if rare else part.wanted
        wanted_density = part.receiving_density(layer.weight()) if wanted == "mask" else None
        try:
            workload = workload_of(layer, self._shapes[layer.name])
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
                    unroute(layer)
            elif layer.name in self._routed:
                self._routed[layer.name].passes = chosen
            else:
                self._routed[layer.name] = put_route(layer, Route(chosen, self._shapes.get(layer.name)))
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
        due = bool(state.get("first_plan_is_due"))  # older states do not say: then layers are planned at the epoch's end
        if self.planner is None and self.mode == "auto":  # nothing is measured, but ranks that can measure ask all others
            self.first_plan_is_due = due
        if self.planner is None or state["planner"] is None:
            return
        # ranks plan together or not at all: in a group each takes what was saved
        same = state["kernels"] == kernels.instruction_set() and (ranks() > 1 or state["threads"] == torch.get_num_threads())
        if not same:
            self.choose("auto", layers, model)
            return
        self.planner.load_state_dict(state["planner"])
        self.first_plan_is_due = due
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
