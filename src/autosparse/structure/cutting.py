"""How dead channels leave a model: a plan of what is kept, and the cut itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autosparse.structure.attributes import head_counts, sizes
from autosparse.structure.dead import Findings, removed
from autosparse.structure.graph import ChannelGraph


@dataclass(frozen=True)
class Plan:
    """Plain values: what is kept of which tensor along which dimension, what biases take, how many units are left."""

    kept: Mapping[str, Mapping[int, Sequence[int]]]
    shapes: Mapping[str, Sequence[int]]  # of the tensors before the cut
    shifts: Mapping[str, Sequence[float]] = field(default_factory=dict)  # added to a bias, or taken from a running mean
    new_biases: Sequence[str] = ()  # modules that get a bias for it
    groups: Mapping[str, int] = field(default_factory=dict)  # of convolutions and norms
    attributes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        kept = {key: {str(dim): list(places) for dim, places in dims.items()} for key, dims in self.kept.items()}
        return {**vars(self), "kept": kept, "shapes": {key: list(shape) for key, shape in self.shapes.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """From what `to_dict` gave."""
        kept = {key: {int(dim): list(places) for dim, places in dims.items()} for key, dims in values["kept"].items()}
        return cls(**{**values, "kept": kept})


def plan_of(model: nn.Module, graph: ChannelGraph, findings: Findings) -> Plan:
    """What is kept if the dead channels go."""
    kept: dict[str, dict[int, list[int]]] = {}
    shapes: dict[str, list[int]] = {}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for (key, dim), ids in graph.slices.items():
        gone = removed(findings, ids)
        if gone.any():
            kept.setdefault(key, {})[dim] = np.flatnonzero(~gone).tolist()
            shapes[key] = list(tensors[key].shape)
    groups: dict[str, int] = {}
    attributes: dict[str, dict[str, int]] = {}
    for units in graph.units:
        left = int((~removed(findings, units.ids)).sum())
        if left == units.count:
            continue
        if units.kind != "heads":
            groups[units.module] = left
            continue
        before, after = (units.count, units.width), (left, units.width // units.count * left)
        changes = dict(head_counts(model.get_submodule(units.module), before, after))
        attributes.setdefault(units.module, {}).update(changes)
    shifts, new_biases = _shifts(graph, findings, tensors)
    return Plan(kept, shapes, shifts, new_biases, groups, {name: each for name, each in attributes.items() if each})


def _shifts(graph: ChannelGraph, findings: Findings, tensors: Mapping[str, Tensor]) -> tuple[dict[str, list[float]], list[str]]:
    """What the constants of dead channels add to every output of the layers that read them."""
    shifts: dict[str, list[float]] = {}
    new_biases = []
    done: set[str] = set()
    for read in graph.reads:
        constants = findings.constants[read.key]
        folded = removed(findings, read.ids) & read.is_read & (np.nan_to_num(constants) != 0)
        if read.key in done or not folded.any():
            continue
        done.add(read.key)
        weight = tensors[read.key].detach().double().movedim(read.dim, 0)
        columns = torch.from_numpy(np.flatnonzero(folded)).to(weight.device)
        sums = weight[columns].flatten(2).sum(2) if weight.dim() > 2 else weight[columns]
        shift = torch.from_numpy(constants[folded]).to(sums) @ sums
        if read.bias is None and read.norm_mean is None:
            new_biases.append(read.module)
        if read.bias is None and read.norm_mean is not None:
            shifts[read.norm_mean] = (-shift).tolist()
        else:
            shifts[read.bias or f"{read.module}.bias"] = shift.tolist()
    return shifts, new_biases


def cut(model: nn.Module, plan: Plan) -> None:
    """Make the model smaller, in place."""
    check(model, plan)
    places = _places(model)
    with torch.no_grad():
        for name in plan.new_biases:
            module = model.get_submodule(name)
            weight = module.weight
            assert isinstance(weight, Tensor)
            module.bias = nn.Parameter(weight.new_zeros(len(plan.shifts[f"{name}.bias"])))
            places[f"{name}.bias"] = [(module, "bias")]
        for key, shift in plan.shifts.items():
            tensor = getattr(*places[key][0])
            tensor += torch.tensor(shift, dtype=torch.float64, device=tensor.device).to(tensor.dtype)
        # a new bias has the size of the uncut outputs, and is cut with them
        kept = {**plan.kept, **{f"{name}.bias": _rows(plan, model, name) for name in plan.new_biases}}
        for key, dims in kept.items():
            smaller = getattr(*places[key][0]).detach()
            for dim, indices in dims.items():
                smaller = smaller.index_select(dim, torch.tensor(indices, device=smaller.device))
            _put(places[key], smaller)
    for name in dict.fromkeys(key.rpartition(".")[0] for key in kept):
        module = model.get_submodule(name)
        vars(module).update(sizes(module, plan.groups.get(name)))
    for name, values in plan.attributes.items():
        vars(model.get_submodule(name)).update(values)


def _rows(plan: Plan, model: nn.Module, name: str) -> Mapping[int, Sequence[int]]:
    dims = plan.kept.get(f"{name}.weight", {})
    side = 1 if getattr(model.get_submodule(name), "transposed", False) else 0
    return {0: dims[side]} if side in dims else {}


def check(model: nn.Module, plan: Plan) -> None:
    """Refuse a model that is not the one that the plan was made for."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for key, shape in plan.shapes.items():
        found = tuple(tensors[key].shape) if key in tensors else None
        if found != tuple(shape):
            have = "has no such tensor" if found is None else f"has one of shape {found}"
            raise ValueError(f"the plan is of another model: it cuts {key} of shape {tuple(shape)}, and this model {have}")


def _places(model: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Where every tensor sits; a tied one at several places, under the first of its names."""
    names: dict[int, str] = {}
    places: dict[str, list[tuple[nn.Module, str]]] = {}
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                key = names.setdefault(id(tensor), f"{prefix}.{name}".lstrip("."))
                places.setdefault(key, []).append((module, name))
    return places


def _put(places: list[tuple[nn.Module, str]], tensor: Tensor) -> None:
    before = getattr(*places[0])
    if isinstance(before, nn.Parameter):
        tensor = nn.Parameter(tensor.contiguous(), requires_grad=before.requires_grad)
    for module, name in places:
        setattr(module, name, tensor)
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()


def shrink_like(model: nn.Module, plan: Plan | Mapping[str, Any]) -> nn.Module:
    """Give a freshly built model the shapes of one that was shrunk, in place: then it can load that one's state_dict."""
    if not isinstance(plan, Plan):
        plan = Plan.from_dict(plan)
    cut(model, plan)
    return model
