"""What every step costs besides the network itself, kept small: small networks take as long for Python as for their weights."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autosparse import kernels
from autosparse.common.ranks import ranks
from autosparse.compute.small_layers import LEAST_LAYERS, MOST_WEIGHTS, SmallLayers
from autosparse.cost.recorder import has_compiled_parts
from autosparse.methods.families.base import Method

if TYPE_CHECKING:
    from autosparse.sparsifier.sparsifier import Sparsifier


def gather_small_layers(sp: Sparsifier) -> SmallLayers:
    """Let the layers make their effective weights together: in one process, in a network too small for the kernels."""
    is_small = sum(layer.numel for layer in sp.layers) <= MOST_WEIGHTS and kernels.available() and ranks() == 1
    if not is_small or sp._compute.skips_zeros or sp._compute.may_gain(sp.layers) or _has_compiled(sp):
        return SmallLayers()
    together = SmallLayers(sp.layers)
    if len(together) < LEAST_LAYERS:
        return SmallLayers()
    together.attach(sp.model)
    return together


def _has_compiled(sp: Sparsifier) -> bool:
    """Whether anything was compiled in this process: with a new hook it would be compiled again."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return has_compiled_parts(sp.model) or (dynamo is not None and any(dynamo.counters.values()))


def passes_of_step(sp: Sparsifier) -> Tensor | Sequence[Sequence[float]]:
    """The densities of the passes after a forward pass, which may have counted; refuses what was cast to half precision."""
    counts = [layer.cached_count() for layer in sp.layers]
    if None in counts:
        return torch.stack(sp.method.passes(sp._density(sp.counts()), sp))
    densities = [count / layer.numel for count, layer in zip(counts, sp.layers, strict=True)]  # type: ignore[operator]
    if getattr(type(sp.method), "passes", None) is not Method.passes:  # a wrapper around a method passes calls on
        return torch.stack(sp.method.passes(torch.tensor(densities, dtype=torch.float64), sp))
    floors = [layer.parametrization.gradient_floor() for layer in sp.layers]
    return densities, densities, [*map(max, densities, floors)]
