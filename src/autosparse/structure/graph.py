"""Which output channels of which modules are one channel, and who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autosparse.cost.recorder import ExampleInput, call_arguments
from autosparse.structure import rules_products, rules_shapes, rules_values  # noqa: F401 - they register themselves
from autosparse.structure.channels import Ids, Ties
from autosparse.structure.follow import Follower, Read, Units
from autosparse.structure.tracing import CannotFollow, Traced, trace


@dataclass(frozen=True)
class ChannelGraph:
    """Channels are numbered; slices of tensors with the same number are one channel. No tensor of the model is held."""

    slices: Mapping[tuple[str, int], Ids]  # by the tensor's key and dimension: the channel of every slice
    fixed: Mapping[int, str]  # channels that must stay, and why
    reads: tuple[Read, ...]
    units: tuple[Units, ...]
    notes: tuple[str, ...] = ()

    def channels(self, key: str, dim: int) -> Ids | None:
        """The channel of every slice of a tensor along a dimension; None where it has none."""
        return self.slices.get((key, dim))

    def members(self) -> dict[int, list[tuple[str, int]]]:
        """For every channel the tensors and dimensions that it is cut from."""
        found: dict[int, list[tuple[str, int]]] = {}
        for place, ids in self.slices.items():
            for channel in np.unique(ids).tolist():
                found.setdefault(channel, []).append(place)
        return found


def follow(
    model: nn.Module, example_input: ExampleInput, tensors: Mapping[str, Tensor] | None = None, both_modes: bool = False
) -> ChannelGraph:
    """Follow the channels of a model for an example input, in evaluation mode or in both.

    With `tensors`, those of the model, values that are constant are known as well.
    """
    ties, notes = Ties(), []
    graphs = [trace(model, example_input, training=False)]
    if both_modes:
        training = _training_graph(model, example_input)
        if isinstance(training, str):
            notes.append(f"equal outputs are promised in evaluation mode alone: in training mode {training}")
        else:
            graphs.append(training)
    followers = [Follower(graph, ties, tensors or {}) for graph in graphs]
    for follower in followers:
        follower.run()
    classes = ties.classes()
    return ChannelGraph(
        slices={place: classes[base : base + size] for place, (base, size) in ties.bases.items()},
        fixed=ties.reasons(classes),
        reads=tuple(_numbered(read, classes) for follower in followers for read in follower.reads),
        units=tuple(_numbered(units, classes) for follower in followers for units in follower.units),
        notes=tuple(notes),
    )


def _numbered(record: Any, classes: Ids) -> Any:
    return type(record)(**{**vars(record), "ids": classes[record.ids]})


def _training_graph(model: nn.Module, example_input: ExampleInput) -> Traced | str:
    """In training mode; a batch norm may need more than the one sample that was given."""
    try:
        return trace(model, example_input, training=True)
    except CannotFollow:
        args, kwargs = call_arguments(example_input)
    try:
        doubled = pytree.tree_map_only(Tensor, lambda each: torch.cat([each, each]) if each.dim() else each, (args, kwargs))
        return trace(model, doubled[0] if not doubled[1] else doubled[1], training=True)
    except CannotFollow as error:
        return str(error)
