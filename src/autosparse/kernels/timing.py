"""Times the passes of a layer, dense and sparse, on random tensors of its shape."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from autosparse.kernels import dense, passes
from autosparse.kernels.compressed import Compressed
from autosparse.kernels.functional import sparse_linear
from autosparse.kernels.planner import Sample, Workload
from autosparse.kernels.plans import plan_for

CLOCK = time.perf_counter
LEAST_CALLS, MOST_CALLS = 2, 4  # the fastest counts
ENOUGH_SECONDS = 0.02  # after this long a further call would cost more than it tells
TINY_STEPS = 50
SEED = 0


def measure(workload: Workload, density: float, dense_too: bool) -> Sample:
    """One sample; torch's number of threads must be the workload's, and is left as it is."""
    if torch.get_num_threads() != workload.threads:
        raise ValueError(f"a workload of {workload.threads} threads, but torch uses {torch.get_num_threads()}")
    with torch.no_grad():
        calls, nonzeros = _calls(workload, density)
        seconds = {
            name: _fastest(call) if dense_too or not name.startswith("dense") else math.inf for name, call in calls.items()
        }
    return Sample(nonzeros, **seconds, operators=operator_seconds())


@lru_cache(maxsize=1)
def operator_seconds() -> float:
    """What a forward and a backward pass of our operator take longer than torch's own, with next to nothing to compute."""
    x, weight = torch.ones(1, 1, requires_grad=True), torch.ones(1, 1, requires_grad=True)

    def seconds(call: Callable[[Tensor, Tensor], Tensor]) -> float:
        with torch.enable_grad():
            times = []
            for _ in range(TINY_STEPS):
                begin = CLOCK()
                torch.autograd.grad(call(x, weight), (x, weight))
                times.append(CLOCK() - begin)
        return statistics.median(times)

    ours = seconds(lambda x, weight: sparse_linear(x, weight, None, "active"))
    return max(0.0, ours - seconds(torch.nn.functional.linear))


def _fastest(call: Callable[[], object]) -> float:
    found: list[float] = []
    while len(found) < LEAST_CALLS or (len(found) < MOST_CALLS and sum(found) < ENOUGH_SECONDS):
        begin = CLOCK()
        call()
        found.append(CLOCK() - begin)
    return min(found)


def _calls(workload: Workload, density: float) -> tuple[dict[str, Callable[[], object]], int]:
    conv = workload.conv
    generator = torch.Generator().manual_seed(SEED)
    shape = (conv.out_channels, conv.in_channels) if workload.linear else (conv.out_channels, conv.in_channels, *conv.kernel)
    weight = torch.randn(shape, generator=generator)
    weight *= torch.rand(shape, generator=generator) < density
    threads = torch.get_num_threads()
    x, grad = _activations(workload, generator)
    plan = plan_for(conv.simplified(), channels_last=False)
    compressed = Compressed(plan, weight, threads)
    geometry = dense.Geometry(conv.stride, conv.padding, conv.dilation)
    dense_weight = weight if workload.linear else weight.contiguous(memory_format=torch.channels_last)
    dense_calls: dict[str, Callable[[], object]] = (
        {
            "dense_forward": lambda: dense.linear(x, dense_weight, None),
            "dense_input": lambda: dense.linear_input_gradient(grad, dense_weight),
            "dense_weight": lambda: dense.linear_weight_gradient(grad, x),
        }
        if workload.linear
        else {
            "dense_forward": lambda: dense.conv2d(x, dense_weight, None, geometry),
            "dense_input": lambda: dense.conv2d_input_gradient(grad, x, dense_weight, geometry),
            "dense_weight": lambda: dense.conv2d_weight_gradient(grad, x, dense_weight, geometry),
        }
    )

    def transpose() -> None:
        compressed.drop_transposed()
        compressed.transposed(threads)

    sparse_calls: dict[str, Callable[[], object]] = {
        "forward": lambda: passes.forward(compressed, x, None, torch.empty_like(grad)),
        "compress": lambda: Compressed(plan, weight, threads),
        "transpose": transpose,
        "input": lambda: passes.input_gradient(compressed, grad, torch.empty_like(x)),
        "weight": lambda: passes.weight_gradient(compressed, x, grad, torch.empty_like(weight)),
    }
    return dense_calls | sparse_calls, compressed.nonzeros


def _activations(workload: Workload, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    conv = workload.conv
    if workload.linear:
        pixels = conv.images * conv.in_size[0] * conv.in_size[1]
        return torch.randn(pixels, conv.in_channels, generator=generator), torch.randn(
            pixels, conv.out_channels, generator=generator
        )
    shapes = (conv.images, conv.in_channels, *conv.in_size), (conv.images, conv.out_channels, *conv.out_size)
    x, grad = (torch.randn(shape, generator=generator).contiguous(memory_format=torch.channels_last) for shape in shapes)
    return x, grad
