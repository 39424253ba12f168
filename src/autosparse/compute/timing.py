"""Times the passes of a layer, dense and sparse."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from autosparse.common.turns import take_turns
from autosparse.compute.planner import Sample, Times, Workload
from autosparse.compute.timed_calls import Calls, LayerCalls
from autosparse.kernels import autograd
from autosparse.kernels.functional import sparse_linear
from autosparse.kernels.fused_layer import Norm
from autosparse.kernels.geometry import Geometry
from autosparse.kernels.layer_call import LayerCall
from autosparse.kernels.layout import layout_for
from autosparse.kernels.memory import release

CLOCK = time.perf_counter
LEAST_CALLS, MOST_CALLS = 2, 4  # the fastest counts
ENOUGH_SECONDS = 0.02  # after this long a further call would cost more than it tells
TINY_STEPS = 50
SEED = 0
MOST_WEIGHTS = 2**22


def measure(workload: Workload, densities: Sequence[float]) -> Times:
    """The dense passes, and the sparse ones at each density; torch's number of threads must be the workload's."""
    if torch.get_num_threads() != workload.threads:
        raise ValueError(f"a workload of {workload.threads} threads, but torch uses {torch.get_num_threads()}")
    timed = _shortened(workload)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        layer = LayerCalls(timed)
        layout = layout_for(timed.conv.simplified(), False, layer.x.dtype)
        weights = [_pattern(layer.shape, density, generator) for density in densities]
        sparse = [layer.sparse(layout, weight) for weight in weights]
        dense, *seconds = _in_turn([layer.dense(weights[0]), *(calls for _, calls in sparse)])
    release()  # training will have fewer non-zeros
    whole = workload.work // timed.work  # times are in proportion
    samples = (Sample(whole * count, **_times(whole, each)) for (count, _), each in zip(sparse, seconds, strict=True))
    return Times(**_times(whole, dense, "dense_"), operators=operator_seconds(workload.fused), samples=tuple(samples))


def _shortened(workload: Workload) -> Workload:
    """A vocabulary layer is timed on a part of it, or measuring would take more memory than training."""
    conv = workload.conv
    channels = conv.out_channels
    while workload.linear and channels % 2 == 0 and channels * conv.in_channels > MOST_WEIGHTS:
        channels //= 2
    return replace(workload, conv=replace(conv, out_channels=channels))


def _times(factor: int, seconds: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    return {prefix + name: factor * each for name, each in seconds.items()}


def _pattern(shape: tuple[int, ...], density: float, generator: torch.Generator) -> Tensor:
    """A weight of ones and zeros."""
    return torch.rand(shape, generator=generator).lt_(density)


def _in_turn(groups: Sequence[Calls]) -> list[dict[str, float]]:
    """The fastest of a few calls each, all of them taking turns."""
    calls = {(place, name): call for place, group in enumerate(groups) for name, call in group.items()}
    seconds = take_turns(calls, MOST_CALLS, clock=CLOCK, least_rounds=LEAST_CALLS, enough_seconds=ENOUGH_SECONDS)
    return [{name: min(seconds[place, name]) for name in group} for place, group in enumerate(groups)]


@lru_cache(maxsize=2)
def operator_seconds(fused: bool) -> float:
    """What a forward and a backward pass of our operators take longer than torch's own, with next to nothing to compute."""
    shape = (2, 1, 1, 1) if fused else (1, 1)
    x, weight = torch.ones(shape, requires_grad=True), torch.ones(shape[1:2] * len(shape), requires_grad=True)
    if fused:
        return max(0.0, _tiny_step(_fused_conv_norm, x, weight) - _tiny_step(_conv_norm, x, weight))
    ours = _tiny_step(lambda x, weight: sparse_linear(x, weight, None, "active"), x, weight)
    return max(0.0, ours - _tiny_step(torch.nn.functional.linear, x, weight))


def _tiny_step(call: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> float:
    with torch.enable_grad():
        times = []
        for _ in range(TINY_STEPS):
            begin = CLOCK()
            torch.autograd.grad(call(x, weight).sum(), (x, weight))
            times.append(CLOCK() - begin)
    return statistics.median(times)


def _conv_norm(x: Tensor, weight: Tensor) -> Tensor:
    raw = torch.nn.functional.conv2d(x, weight)
    return torch.nn.functional.batch_norm(raw, None, None, training=True).relu()


def _fused_conv_norm(x: Tensor, weight: Tensor) -> Tensor:
    call = LayerCall(weight, None, Geometry((1, 1), (0, 0), (1, 1)), "active", None, (True, True, True))
    raw, folded, _ = autograd.conv_norm(x, None, False, call, Norm(None, None, torch.zeros(1), 1e-5))
    return autograd.join(raw, folded, None, None, relu=True)
