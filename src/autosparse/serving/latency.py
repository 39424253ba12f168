"""Measures how long a model in training would take when it is served: one sample, one thread, at several densities."""

from __future__ import annotations

import copy
import math
import statistics
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autosparse.common.tensors import is_sharded
from autosparse.common.turns import clock_for, take_turns
from autosparse.layer import Layer
from autosparse.methods.latency import DENSITIES, LatencyTable
from autosparse.serving.deployed import Deployed
from autosparse.serving.deployment import deploy, with_threads
from autosparse.serving.example import Example
from autosparse.sparsifier import Sparsifier

MOST_ROUNDS, LEAST_ROUNDS, ENOUGH_SECONDS = 400, 10, 0.5


def measure(sp: Sparsifier, precision: str) -> LatencyTable:
    """Deploy a copy of the model with random zeros, all layers at one density after the other, and time its layers.

    The table is of least times, which other programs disturb least, times what a median is above the least here.
    """
    if any(is_sharded(layer.stored) for layer in sp.layers):
        raise ValueError("target_latency needs whole weights and cannot be measured under FSDP2: use DDP, or target_flops")
    model = sp.finalize_average(copy.deepcopy(sp.model)).cpu().float().eval()
    example = one_sample(sp.example_input)
    layers: dict[str, list[float]] = {layer.name: [] for layer in sp.layers}
    rest: list[float] = []
    excess: list[float] = []
    random = torch.Generator().manual_seed(0)
    with warnings.catch_warnings(), with_threads(1), torch.no_grad():
        warnings.simplefilter("ignore")  # what deploy says is for the model that is deployed in the end
        for density in DENSITIES:
            for layer in sp.layers:
                _fill(model, layer, density, getattr(sp.method, "rows_per_pattern", 1), random)
            batches = [example] if precision == "int8" else None  # any ranges: they do not change the time
            deployed = deploy(model, example, threads=1, precision=precision, calibration=batches)
            total, median, parts = _milliseconds(deployed, example)
            excess.append(median / total)
            for layer in sp.layers:
                layers[layer.name].append(sum(parts.get(place.name, 0.0) for place in layer.places))
            rest.append(max(0.0, total - sum(times[-1] for times in layers.values())))
    usual = statistics.median(excess)
    rows = {name: tuple(usual * time for time in times) for name, times in layers.items()}
    return LatencyTable(DENSITIES, rows, tuple(usual * time for time in rest))


def one_sample(example_input: Any) -> Example:
    """The first sample of every tensor, on the CPU."""
    example = Example.of(example_input)
    first = partial(pytree.tree_map, lambda value: value[:1].cpu() if isinstance(value, Tensor) and value.dim() else value)
    args, named = first((example.args, example.named))
    return Example(args, named)


def _fill(model: nn.Module, layer: Layer, density: float, rows: int, random: torch.Generator) -> None:
    """Random numbers of the weight's size, of which this part is not zero; output channels share zeros as in the run."""
    for place in layer.places:
        weight = getattr(model.get_submodule(place.module_name), place.tensor)
        by_row = weight.movedim(layer.channel_dim, 0)
        groups = math.ceil(len(by_row) / rows)
        active = (torch.rand(groups, *by_row.shape[1:], generator=random) < density).repeat_interleave(rows, 0)[: len(by_row)]
        size = weight.square().mean().sqrt().clamp_min(1e-3)
        by_row.copy_(torch.randn(by_row.shape, generator=random) * size * active)


def _milliseconds(deployed: Deployed, example: Example) -> tuple[float, float, dict[str, float]]:
    """The least time of a call and the median, and the least times of layers that the engine computes."""
    inputs = example.fresh()

    def call() -> None:
        deployed(*inputs.args, **inputs.named)

    rounds: dict[str, Any] = {"least_rounds": LEAST_ROUNDS, "enough_seconds": ENOUGH_SECONDS}
    seconds = take_turns({"": call}, MOST_ROUNDS, clock=clock_for(1), before=lambda _: call(), **rounds)[""]
    rows = deployed.layers(*inputs.args, **inputs.named)
    # a depthwise convolution is computed on the way to the pointwise one after it
    parts = {row.name.split(" + ")[-1]: row.microseconds / 1e3 for row in rows if row.microseconds is not None}
    return 1e3 * min(seconds), 1e3 * statistics.median(seconds), parts
