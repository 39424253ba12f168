"""The channels that a method may remove: for every layer of a run, which channel each slice of its weight belongs to."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autosparse.cost.recorder import ExampleInput
from autosparse.layer import Layer
from autosparse.structure.channels import Ids
from autosparse.structure.cutting import cut, plan_of
from autosparse.structure.dead import Findings
from autosparse.structure.graph import ChannelGraph, follow
from autosparse.structure.shrinking import run_smaller
from autosparse.structure.tracing import CannotFollow

OUTSIDE = "is a weight outside of the run"
FIXED = -1  # a slice whose channel stays


@dataclass(frozen=True)
class Slices:
    """One layer: the numbers of the channels along each dimension of its weight, None where it is never cut."""

    dims: tuple[Ids | None, ...]
    reads: int | None  # the dimension along which it reads channels
    makes: int | None  # the dimension along which it makes channels

    def cut(self) -> list[tuple[int, Ids]]:
        """The dimensions along which it may be cut, with their numbers."""
        return [(dim, ids) for dim, ids in enumerate(self.dims) if ids is not None]

    def of(self, side: int | None) -> list[int]:
        """The channels along a dimension, `reads` or `makes`, that may go, each once."""
        ids = None if side is None else self.dims[side]
        return [] if ids is None else list(dict.fromkeys(ids[ids >= 0].tolist()))


@dataclass(frozen=True)
class Wiring:
    """Channels 0 to `count` - 1 of a run; holds names and numbers, no tensor of the model."""

    count: int
    layers: Mapping[str, Slices]
    vectors: tuple[Mapping[str, Ids], ...]  # for every channel its places in biases and norms, by key
    heads: Mapping[str, Ids]  # by the name of a module's attention products in a profile: a channel per head
    stay: Mapping[str, str]  # layers of which no channel can go, and why

    def mask(self, name: str, kept: Tensor, shape: Sequence[int]) -> Tensor:
        """The mask of a layer's weight if these channels are kept: a boolean for every channel."""
        mask = torch.ones(tuple(shape), dtype=torch.bool, device=kept.device)
        for dim, ids in self.layers[name].cut():
            index = torch.from_numpy(ids).to(kept.device)
            mask &= along((index < 0) | kept[index.clamp_min(0)], dim, len(shape))
        return mask

    def shares(self, kept: np.ndarray[Any, Any], name: str) -> float:
        """The share of a layer's products that is left; `kept` may hold shares, too."""
        shares = (np.where(ids >= 0, kept[np.maximum(ids, 0)], 1.0).mean() for _, ids in self.layers[name].cut())
        return math.prod(map(float, shares), start=1.0)

    # a part of a run: nothing of it changes

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def along(values: Tensor, dim: int, dims: int) -> Tensor:
    """One value per slice, ready to be multiplied with a weight."""
    return values.reshape([-1 if each == dim else 1 for each in range(dims)])


def wire(model: nn.Module, layers: Sequence[Layer], example_input: ExampleInput | None, method: str) -> Wiring:
    """Follow the channels of a model; refuses one that has none to remove, with the reasons."""
    if example_input is None:
        raise ValueError(f"{method} follows the channels through the model: give sparsify an example_input")
    graph = follow(model, example_input)
    keys = {layer.name: _key(layer, graph) for layer in layers}
    candidates, reasons = _candidates(model, graph, set(keys.values()))
    candidates -= _unrunnable_heads(model, example_input, graph, candidates, reasons)
    numbers = {channel: number for number, channel in enumerate(sorted(candidates))}
    slices = {layer.name: _slices(graph, keys[layer.name], layer, numbers) for layer in layers}
    stay = {
        name: _first_reason(graph, keys[name], reasons)
        for name, each in slices.items()
        if all(bool((ids < 0).all()) for _, ids in each.cut())
    }
    if not numbers:
        lines = "; ".join(f"{name}: {reason}" for name, reason in list(stay.items())[:5])
        raise CannotFollow(f"{method} finds no channel of this model that could be removed: {lines}")
    heads: dict[str, Ids] = {}
    for units in sorted((each for each in graph.units if each.kind == "heads"), key=lambda each: each.count):
        heads[f"{units.module}.products".lstrip(".")] = _numbered(units.ids, numbers)  # of queries where there are fewer keys
    return Wiring(len(numbers), slices, _vectors(model, graph, numbers), heads, stay)


def _key(layer: Layer, graph: ChannelGraph) -> str:
    known = {key for key, _ in graph.slices}
    return next((place.key for place in layer.places if place.key in known), layer.places[0].key)


def _candidates(model: nn.Module, graph: ChannelGraph, weights: set[str]) -> tuple[set[int], dict[int, str]]:
    """Channels that some layer reads, that nothing pins, and whose weights are all part of the run."""
    reasons = dict(graph.fixed)
    sides = {key: len(tensor.shape) for key, tensor in model.named_parameters()}
    for channel, members in graph.members().items():
        outside = [key for key, _ in members if sides.get(key, 0) > 1 and key not in weights]
        if outside and channel not in reasons:
            reasons[channel] = f"{outside[0]} {OUTSIDE}"
    read = {channel for each in graph.reads for channel in each.ids.tolist()}
    made = {channel for (key, _), ids in graph.slices.items() if sides.get(key, 0) > 1 for channel in ids.tolist()}
    return {channel for channel in read & made if channel not in reasons}, reasons


def _unrunnable_heads(
    model: nn.Module, example_input: ExampleInput, graph: ChannelGraph, candidates: set[int], reasons: dict[int, str]
) -> set[int]:
    """Heads of modules whose code does not run with one less: tried on a copy."""
    units = [each for each in graph.units if each.kind == "heads" and candidates & set(each.ids.tolist())]
    dead = {int(each.ids[-1]) for each in units if len(set(each.ids.tolist())) > 1} & candidates
    if not dead:
        return set()
    constants = {read.key: np.zeros(len(read.ids)) for read in graph.reads}
    smaller = copy.deepcopy(model)
    try:
        cut(smaller, plan_of(smaller, graph, Findings(frozenset(dead), {}, constants)))
        run_smaller(smaller, example_input)
    except Exception as error:  # whatever the forward pass of other people's modules does
        heads = {channel for each in units for channel in each.ids.tolist()}
        reasons.update(dict.fromkeys(heads, f"with a head less its module does not run: {type(error).__name__}"))
        return heads
    return set()


def _numbered(ids: Ids, numbers: Mapping[int, int]) -> Ids:
    return np.array([numbers.get(channel, FIXED) for channel in ids.tolist()], dtype=np.int64)


def _slices(graph: ChannelGraph, key: str, layer: Layer, numbers: Mapping[int, int]) -> Slices:
    dims: list[Ids | None] = []
    for dim in range(len(layer.shape)):
        ids = graph.channels(key, dim)
        dims.append(None if ids is None else _numbered(ids, numbers))
    reads = next((read.dim for read in graph.reads if read.key == key), None)
    makes = layer.channel_dim if dims[layer.channel_dim] is not None else None
    return Slices(tuple(dims), reads, makes)


def _first_reason(graph: ChannelGraph, key: str, reasons: Mapping[int, str]) -> str:
    for dim in (0, 1):
        ids = graph.channels(key, dim)
        for channel in () if ids is None else ids.tolist():
            if channel in reasons:
                return reasons[channel]
    return "no layer reads its channels"


def _vectors(model: nn.Module, graph: ChannelGraph, numbers: Mapping[int, int]) -> tuple[dict[str, Ids], ...]:
    """Where each channel sits in tensors of one dimension: biases, norms and their statistics."""
    found: list[dict[str, Ids]] = [{} for _ in numbers]
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for (key, dim), ids in graph.slices.items():
        if tensors[key].dim() != 1 or dim != 0:
            continue
        mine = _numbered(ids, numbers)
        for number in np.unique(mine[mine >= 0]).tolist():
            found[number][key] = np.flatnonzero(mine == number)
    return tuple(found)
