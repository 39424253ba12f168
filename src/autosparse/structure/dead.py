"""Which channels are dead: every reader multiplies them by 0, or reads 0 or a constant that its bias can take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import nn
from torch.nn.modules.conv import _ConvNd

from autosparse.structure.channels import Ids, Values
from autosparse.structure.follow import Read
from autosparse.structure.graph import ChannelGraph

CLOSE = 1e-6  # between evaluation and training mode: a running mean that has all but decayed


@dataclass(frozen=True)
class Findings:
    """Dead channels, why others stay, and the constants that biases take: for a layer's key one per input."""

    dead: frozenset[int]
    reasons: Mapping[int, str]
    constants: Mapping[str, Values] = field(default_factory=dict)

    def without(self, channels: Iterable[int], reason: str) -> Findings:
        kept = frozenset(channels) & self.dead
        return Findings(self.dead - kept, {**self.reasons, **dict.fromkeys(kept, reason)}, self.constants)


def examine(graph: ChannelGraph, model: nn.Module) -> Findings:
    """Look at every reader of every channel."""
    reasons = dict(graph.fixed)
    read: set[int] = set()
    constants: dict[str, Values] = {}
    for each in graph.reads:
        read.update(each.ids.tolist())
        _look(each, reasons, constants, model)
    dead = {channel for channel in read if channel not in reasons}
    _leave_one(graph, dead, reasons)
    return Findings(frozenset(dead), reasons, constants)


def _look(read: Read, reasons: dict[int, str], constants: dict[str, Values], model: nn.Module) -> None:
    """What one reader sees; in the second mode it must be what it was in the first."""
    takes_bias = read.bias is not None or read.norm_mean is not None or _may_have_bias(model, read)
    before = constants.setdefault(read.key, np.where(read.is_read, read.values, 0.0))
    for place, channel in enumerate(read.ids.tolist()):
        if channel in reasons or not read.is_read[place]:
            continue
        value, other = float(read.values[place]), float(before[place])
        if np.isnan(value):
            reasons[channel] = f"{read.module} reads a value that is not constant"
        elif value != 0 and read.padded:
            reasons[channel] = f"{read.module} reads the constant {value:.3g} and zeros around it, which no bias can take"
        elif abs(value - other) > CLOSE * max(1.0, abs(value)):
            reasons[channel] = f"{read.module} reads {other:.3g} in evaluation mode and {value:.3g} in training mode"
        elif value != 0 and not takes_bias:
            reasons[channel] = f"{read.module} reads the constant {value:.3g} and has no bias to take it"


def _may_have_bias(model: nn.Module, read: Read) -> bool:
    module = model.get_submodule(read.module)
    return isinstance(module, nn.Linear | _ConvNd) and read.key.endswith("weight")


def _leave_one(graph: ChannelGraph, dead: set[int], reasons: dict[int, str]) -> None:
    """torch has no layers without channels: the first of each stays."""
    for ids in graph.slices.values():
        if all(channel in dead for channel in ids.tolist()):
            first = int(ids[0])
            dead.discard(first)
            reasons[first] = "a layer would have no channel left"


def removed(findings: Findings, ids: Ids) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Where slices belong to dead channels."""
    return np.isin(ids, np.fromiter(findings.dead, dtype=np.int64, count=len(findings.dead)))
