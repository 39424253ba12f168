"""What shrinking did, layer by layer, and why channels stay that look dead."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import nn

from autosparse.common.tables import Table
from autosparse.layer import is_transposed_linear
from autosparse.structure.cutting import Plan
from autosparse.structure.dead import Findings, removed
from autosparse.structure.graph import ChannelGraph


@dataclass(frozen=True)
class LayerShrinkage:
    """The output channels of one layer."""

    name: str
    kind: str
    channels: int
    removed: int
    zero_but_kept: int = 0  # channels whose weights are all 0, and that stay
    reason: str = ""  # of the first of them


@dataclass(frozen=True)
class Shrinkage:
    """The report; `plan` lets a freshly built model take the same shapes: `autosparse.shrink_like(model, plan)`."""

    layers: tuple[LayerShrinkage, ...]
    parameters_before: int
    parameters_after: int
    plan: Plan
    notes: tuple[str, ...] = ()

    @property
    def removed(self) -> int:
        return sum(layer.removed for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "plan": self.plan.to_dict()}

    def __str__(self) -> str:
        rows = [
            (layer.name, layer.kind, layer.channels, layer.removed, layer.zero_but_kept or "", layer.reason)
            for layer in self.layers
        ]
        share = 1 - self.parameters_after / self.parameters_before if self.parameters_before else 0.0
        return Table(
            headings=("layer", "kind", "channels", "removed", "zero, kept", "because"),
            rows=rows,
            title=f"{self.parameters_before:,} parameters before, {self.parameters_after:,} after ({share:.1%} removed)",
            notes=list(self.notes),
        ).text()


def describe(model: nn.Module, graph: ChannelGraph, findings: Findings, plan: Plan) -> Shrinkage:
    """Before the cut."""
    rows = []
    after = before = 0
    for key, parameter in model.named_parameters():
        before += parameter.numel()
        cuts = {dim: len(places) for dim, places in plan.kept.get(key, {}).items()}
        after += int(np.prod([cuts.get(dim, size) for dim, size in enumerate(parameter.shape)]))
        name, _, tensor = key.rpartition(".")
        module = model.get_submodule(name)
        side = 1 if is_transposed_linear(module) or getattr(module, "transposed", False) else 0
        ids = graph.channels(key, side)
        if ids is None or parameter.dim() < 2 or tensor != "weight" or isinstance(module, nn.Embedding):
            continue
        gone = removed(findings, ids)
        zero = (parameter.detach() == 0).movedim(side, 0).reshape(len(ids), -1).all(1).cpu().numpy() & ~gone
        reasons = [findings.reasons.get(int(channel), "no layer reads it") for channel in ids[zero]]
        rows.append(
            LayerShrinkage(
                name, type(module).__name__, len(ids), int(gone.sum()), int(zero.sum()), reasons[0] if reasons else ""
            )
        )
    for name in plan.new_biases:
        after += len(plan.kept.get(f"{name}.weight", {}).get(0, range(len(plan.shifts[f"{name}.bias"]))))
    return Shrinkage(tuple(rows), before, after, plan, graph.notes)
