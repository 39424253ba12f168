"""How sparsified layers compute: dense torch operations, or native kernels that skip the zeros."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autosparse import kernels
from autosparse.common.ranks import from_first_rank, leads, ranks
from autosparse.compute import fused_forward, reasons, routing
from autosparse.compute.fusion import fused_convolutions
from autosparse.compute.kept_times import KeptTimes
from autosparse.compute.overrides import Override
from autosparse.compute.planner import BFLOAT16, DENSE, FLOAT32, LEAST_WORK, Passes, Planner, Workload
from autosparse.compute.proof import Proofs
from autosparse.compute.tracing import Traces
from autosparse.layer import Layer

MODES = ("auto", "dense", "sparse")
SPARSE = Passes(True, True, True)
NOTHING: Mapping[str, str] = {}
# Convolutions that fused steps would take in, with whether they would compute with images last; found when first asked for.
Fusible = Callable[[], dict[nn.Module, bool]]
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
    reason: str = ""  # why passes are dense
    precision: str = FLOAT32  # of its activations in training, as far as known

    def __str__(self) -> str:
        where = "" if self.precision == FLOAT32 else f" in {self.precision}"
        if not self.passes:
            return f"dense{where}: {self.reason}"
        skipped = "all passes" if len(self.passes) == len(Passes._fields) else ", ".join(self.passes)
        return f"skips zeros{where}: {skipped}" + (f" ({self.reason})" if self.reason else "")


class Compute:
    """The choice for a whole model: "dense", "sparse" wherever a kernel fits, or "auto": what measured faster.

    Under "auto" a module is left as it was found unless a pass of it runs sparse.
    """

    def __init__(self) -> None:
        self.mode = "dense"
        self.fuse = True  # batch norms, ReLUs and residual sums with the convolutions around them
        self.planner: Planner | None = None
        self.first_plan_is_due = False  # after the coming step, when the shapes of inputs are known
        self.kept_times: KeptTimes | None = None  # where measured times are written at once
        self._records: dict[str, Override] = {}  # of layers that a kernel may serve
        self._traces = Traces()
        self._proofs = Proofs()
        self._fused: nn.Module | None = None

    def choose(self, mode: str, layers: Sequence[Layer], model: nn.Module) -> None:
        """Start over in a mode."""
        if mode not in MODES:
            raise ValueError(f"compute mode {mode!r}; allowed: {', '.join(MODES)}")
        if mode == "sparse" and not kernels.available():
            raise RuntimeError(f'the sparse kernels cannot run here: {kernels.why_not()}; use "auto" or "dense"')
        self._apply({}, layers, model)
        for layer in layers:
            routing.forget(layer)
        self.mode, self._records, self.planner, self.first_plan_is_due = mode, {}, None, mode == "auto"
        self._proofs = Proofs(is_needed=mode == "auto")
        if mode == "sparse":
            self._apply({layer.name: SPARSE for layer in layers if routing.fits(layer)}, layers, model)
            if not self._records:
                raise RuntimeError(
                    "no sparsified layer is a float32 Linear or ungrouped Conv2d on the CPU: nothing can run sparse"
                )
        elif mode == "auto" and kernels.available():
            self.planner = Planner()
            if self.kept_times is not None and leads():
                self.kept_times.give(self.planner)
            watched = {layer.name: routing.watch(layer) for layer in layers}
            self._records = {name: record for name, record in watched.items() if record is not None}

    def keep_times(self, path: str | os.PathLike[str], layers: Sequence[Layer], model: nn.Module) -> None:
        """Start over with the times of this file, which takes in all that are measured."""
        self.kept_times = KeptTimes(Path(path))
        self.choose(self.mode, layers, model)

    def plan(
        self, layers: Sequence[Layer], densities: Callable[[], Sequence[float]], model: nn.Module, rare: bool = False
    ) -> bool:
        """Under "auto": decide for every layer and pass, from times measured at its shape and its present density.

        Gives whether any layer runs in another way now.

        `densities` are asked for only on the CPU: any other device would have to wait for them. `rare`: pruned weights
        receive gradients at few steps only, so plan for the steps between. All ranks follow rank 0.
        """
        if self.mode != "auto":
            return False
        self.first_plan_is_due = False
        self._note_shapes({}, layers)
        if layers[0].stored.device.type != "cpu":
            return False
        before = self._passes
        present = densities()  # on every rank: a sharded model gathers its weights for them
        passes = {}
        if self.planner is not None and leads() and not torch.are_deterministic_algorithms_enabled():
            refused = self._proofs.refused_inside(model, "")
            fusible = cache(partial(fused_convolutions, model, self._traces, refused))  # only if a convolution may run sparse
            known = {layer: density for layer, density in zip(layers, present, strict=True) if self._may_be_planned(layer)}
            passes = {layer.name: self._choose(layer, density, rare, fusible) for layer, density in known.items()}
            passes |= self._dense_where_fusing_loses(list(known), passes, fusible)
        if ranks() > 1:
            planned = None if self.planner is None else self.planner.state_dict()
            ours = (passes, self._shapes, self._precisions, planned)
            passes, shapes, precisions, planned = from_first_rank(ours, layers[0].stored.device)
            self._note_shapes(shapes, layers, precisions)
            if self.planner is not None and planned is not None:
                self.planner.load_state_dict(planned)
        if self.planner is not None:
            self._apply(passes, layers, model)
        return self._passes != before

    def may_gain(self, layers: Sequence[Layer]) -> bool:
        """Whether planning again can change anything: some layer is large enough. Ranks plan together in any case."""
        if self.mode != "auto" or layers[0].stored.device.type != "cpu":
            return False
        if ranks() > 1 or self.first_plan_is_due:
            return True
        shapes, named = self._shapes, {layer.name: layer for layer in layers}
        return any(_is_large(named[name], shape) for name, shape in shapes.items())

    @property
    def _shapes(self) -> dict[str, torch.Size]:
        """The largest inputs in training, where they are known."""
        return {name: record.input_shape for name, record in self._records.items() if record.input_shape is not None}

    @property
    def _precisions(self) -> dict[str, str]:
        """Of the layers that are not computed in float32."""
        return {name: self._records[name].precision for name in self._shapes if self._records[name].precision != FLOAT32}

    def _note_shapes(
        self, shapes: Mapping[str, Sequence[int]], layers: Sequence[Layer], precisions: Mapping[str, str] = NOTHING
    ) -> None:
        """Take in shapes from elsewhere. A layer of known shape is no longer watched: modules with hooks are not fused."""
        for layer in layers:
            record = self._records.get(layer.name)
            if record is not None and layer.name in shapes:
                record.note_shape(torch.Size(shapes[layer.name]), precisions.get(layer.name, FLOAT32))
            if record is not None and record.input_shape is not None:
                routing.unwatch(layer)

    def _choose(self, layer: Layer, density: float, rare: bool, fusible: Fusible) -> Passes:
        assert self.planner is not None
        part = layer.parametrization
        entries = "active" if rare else part.gradient_entries
        mask_density = part.gradient_density(layer.weight()) if entries == "mask" else None
        try:
            workload = self._workload(layer)
            if self.planner.considers(workload, density):
                workload = self._among_fused(layer, workload, fusible) or workload
            return self.planner.decide(layer.name, workload, density, entries, mask_density)
        except ValueError:  # larger than the kernels' indices reach
            return DENSE

    def _may_be_planned(self, layer: Layer) -> bool:
        return layer.name in self._shapes and routing.fits(layer)

    def _workload(self, layer: Layer) -> Workload:
        return routing.workload_of(layer, self._shapes[layer.name], self._records[layer.name].precision)

    def _among_fused(self, layer: Layer, workload: Workload, fusible: Fusible) -> Workload | None:
        """None where it is not fused."""
        images_last = fusible().get(layer.places[0].module) if self._fuses() and not workload.linear else None
        if images_last is None:
            return None
        return workload.among_fused(images_last and workload.conv.images % kernels.lanes() == 0)

    def _dense_where_fusing_loses(
        self, layers: Sequence[Layer], passes: Mapping[str, Passes], fusible: Fusible
    ) -> dict[str, Passes]:
        """Dense passes for all layers that are fused together, where torch by itself is faster than the whole of them."""
        assert self.planner is not None

        def fused(layer: Layer) -> Workload | None:
            return self._among_fused(layer, self._workload(layer), fusible)

        if not any(fused(layer) for layer in layers if any(passes[layer.name])):
            return {}
        together = {layer.name: workload for layer in layers if (workload := fused(layer)) is not None}
        if self.planner.fusing_pays(together, are_fused=any(name in self._passes for name in together)):
            return {}
        self.planner.leave_dense(together)
        return dict.fromkeys(together, DENSE)

    def _apply(self, passes: Mapping[str, Passes], layers: Sequence[Layer], model: nn.Module) -> None:
        """Override forwards where a pass is sparse, and release the others."""
        before = self._passes
        for layer in layers:
            if any(passes.get(layer.name, DENSE)):
                record = self._records.get(layer.name)
                precision = record.precision if record is not None and self.mode == "auto" else None
                self._records[layer.name] = routing.override(layer, passes[layer.name], precision)
            else:
                routing.release(layer)
        changed = self._passes != before
        if changed:
            self._traces.renew()
        if self._fuses() and self._passes:
            if changed or self._fused is None:  # a module where nothing could be fused may be traced again
                fused_forward.install(model, "", self._traces, self._proofs)
            self._fused = model
        else:
            self._unfuse()

    def _unfuse(self) -> None:
        if self._fused is not None:
            fused_forward.remove(self._fused)
            self._fused = None

    @property
    def skips_zeros(self) -> bool:
        """Whether any layer runs on the sparse kernels now."""
        return bool(self._passes)

    @property
    def _passes(self) -> dict[str, Passes]:
        """Of the layers that skip zeros in one of them."""
        return {name: record.passes for name, record in self._records.items() if any(record.passes)}

    def _fuses(self) -> bool:
        """Without vector instructions the steps around a convolution are faster in torch: under "auto" they are left there."""
        return self.fuse and not (self.mode == "auto" and kernels.instruction_set() == "portable")

    def state_dict(self) -> dict[str, Any]:
        """What was measured and decided, in plain values; a run that goes on from it computes in the same way."""
        return {
            "threads": torch.get_num_threads(),
            "kernels": kernels.instruction_set(),
            "first_plan_is_due": self.first_plan_is_due,
            # a step that is skipped before the first plan leaves no trace
            "shapes": {} if self.first_plan_is_due else {name: list(shape) for name, shape in self._shapes.items()},
            "precisions": {} if self.first_plan_is_due else self._precisions,
            "passes": {name: list(passes) for name, passes in self._passes.items()},
            "planner": None if self.planner is None else self.planner.state_dict(),
            "fusing": self._proofs.state_dict(),
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise where `load_state_dict` would, and change nothing."""
        planned, _, _ = (state[key] for key in ("planner", "kernels", "threads"))
        for shape in state["shapes"].values():
            torch.Size(shape)
        for name, precision in state.get("precisions", NOTHING).items():
            if precision not in (FLOAT32, BFLOAT16):
                raise ValueError(f"layer {name!r} has the precision {precision!r}")
        for passes in state["passes"].values():
            Passes(*passes)
        if self.planner is not None and planned is not None:
            copy.copy(self.planner).load_state_dict(planned)
        if "fusing" in state:
            Proofs().load_state_dict(state["fusing"])

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
        known = self.planner.state_dict()["times"]  # from the run's folder: measured after this state was saved
        self.planner.load_state_dict(state["planner"])
        self.planner.add_times(known)
        self.first_plan_is_due = due
        self._note_shapes(state["shapes"], layers, state.get("precisions", NOTHING))
        self._unfuse()
        if "fusing" in state:  # which older states do not have: then the next step is compared
            self._proofs.load_state_dict(state["fusing"])
        fitting = {layer.name for layer in layers if routing.fits(layer)}
        self._apply({name: Passes(*each) for name, each in state["passes"].items() if name in fitting}, layers, model)

    def plans(self, layers: Sequence[Layer], densities: Sequence[float]) -> list[LayerPlan]:
        """How every layer runs now."""
        decisions = self.planner.decisions if self.planner else {}
        plans = []
        for layer, density in zip(layers, densities, strict=True):
            passes, decision = self._passes.get(layer.name, DENSE), decisions.get(layer.name)
            sparse = tuple(name for name, is_sparse in passes._asdict().items() if is_sparse)
            dense, now = (decision.dense_seconds, decision.seconds) if decision else (None, None)
            reason = self._reason(layer, density, passes)
            record = self._records.get(layer.name)
            precision = FLOAT32 if record is None else record.precision
            plans.append(LayerPlan(layer.name, tuple(layer.shape), density, sparse, dense, now, reason, precision))
        return plans

    def _reason(self, layer: Layer, density: float, passes: Passes) -> str:
        if not any(passes):
            record = self._records.get(layer.name)
            return reasons.why_dense(layer, density, self.mode, self.planner, record, self.first_plan_is_due)
        needs_all = not passes.weight and layer.attached and layer.parametrization.gradient_entries == "all"
        return "pruned weights receive gradients, so that of the weight is dense" if needs_all else ""

    def __str__(self) -> str:
        if not self._passes:
            return f"{COUNTED}{self._why_dense()}"
        count = sum(sum(passes) for passes in self._passes.values())
        served = len({*self._passes, *self._shapes})
        halves = sum(record.precision != FLOAT32 for record in self._records.values() if any(record.passes))
        precision = f", {halves} of {len(self._passes)} layers in bfloat16" if halves else ""
        where = f"of {served} layers skip the zeros ({kernels.instruction_set()} kernels{precision})"
        fused = 0 if self._fused is None else fused_forward.count_fused(self._fused)
        norms = f"; {fused} batch norms are fused with their convolutions" if fused else ""
        spent = "" if self.planner is None else f"; measuring took {self.planner.seconds_spent:.1f} s"
        return f"{count} of {served * len(Passes._fields)} passes {where}{norms}{self._proofs}{spent}"

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


def _is_large(layer: Layer, shape: torch.Size) -> bool:
    try:
        return routing.workload_of(layer, shape).work >= LEAST_WORK
    except ValueError:  # larger than the kernels' indices reach
        return False
