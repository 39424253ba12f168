"""Times the passes of a layer, dense and sparse, on tensors of its shape."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from autosparse.kernels import dense, fused_functions, fused_passes, passes
from autosparse.kernels.compressed import Compressed
from autosparse.kernels.functional import sparse_linear
from autosparse.kernels.fused_layer import ConvCall, Norm
from autosparse.kernels.fused_passes import Ending, Gradient, Value
from autosparse.kernels.planner import Sample, Times, Workload
from autosparse.kernels.plans import Plan, plan_for

CLOCK = time.perf_counter
LEAST_CALLS, MOST_CALLS = 2, 4  # the fastest counts
ENOUGH_SECONDS = 0.02  # after this long a further call would cost more than it tells
TINY_STEPS = 50
SEED = 0


def measure(workload: Workload, densities: Sequence[float]) -> Times:
    """The dense passes, and the sparse ones at each density; torch's number of threads must be the workload's."""
    if torch.get_num_threads() != workload.threads:
        raise ValueError(f"a workload of {workload.threads} threads, but torch uses {torch.get_num_threads()}")
    plan = plan_for(workload.conv.simplified(), channels_last=False)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        x, grad = _activations(workload)
        seconds = {name: _fastest(call) for name, call in _dense_calls(workload, x, grad).items()}
        samples = tuple(_sample(plan, _pattern(workload, density, generator), x, grad) for density in densities)
    return Times(**seconds, operators=operator_seconds(workload.fused), samples=samples)


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
    call = ConvCall(weight, None, dense.Geometry((1, 1), (0, 0), (1, 1)), "active", None, (True, True, True))
    raw, folded, _ = fused_functions.conv_norm(x, None, False, call, Norm(None, None, torch.zeros(1), 1e-5))
    return fused_functions.join(raw, folded, None, None, relu=True)


def _fastest(call: Callable[[], object]) -> float:
    found: list[float] = []
    while len(found) < LEAST_CALLS or (len(found) < MOST_CALLS and sum(found) < ENOUGH_SECONDS):
        begin = CLOCK()
        call()
        found.append(CLOCK() - begin)
    return min(found)


def _dense_calls(workload: Workload, x: Tensor, grad: Tensor) -> dict[str, Callable[[], object]]:
    conv, weight = workload.conv, torch.ones(_weight_shape(workload))
    if workload.linear:
        return {
            "dense_forward": lambda: dense.linear(x, weight, None),
            "dense_input": lambda: dense.linear_input_gradient(grad, weight),
            "dense_weight": lambda: dense.linear_weight_gradient(grad, x),
        }
    weight = weight.contiguous(memory_format=torch.channels_last)
    geometry = dense.Geometry(conv.stride, conv.padding, conv.dilation)
    if workload.fused:
        return _calls_among_fused(geometry, weight, x, grad)
    return {
        "dense_forward": lambda: dense.conv2d(x, weight, None, geometry),
        "dense_input": lambda: dense.conv2d_input_gradient(grad, x, weight, geometry),
        "dense_weight": lambda: dense.conv2d_weight_gradient(grad, x, weight, geometry),
    }


def _calls_among_fused(geometry: dense.Geometry, weight: Tensor, x: Tensor, grad: Tensor) -> dict[str, Callable[[], object]]:
    """The dense passes with the sweeps that they need between fused neighbours, as fused_layer.py makes them."""
    folded = torch.ones(3, x.shape[1], dtype=torch.float64)
    value = Value.of(x, folded, relu=True)
    of_raw, shift = Gradient(grad, grad, torch.ones(3, grad.shape[1])), torch.zeros(grad.shape[1])

    def forward() -> None:
        raw = dense.conv2d(fused_passes.materialise(value), weight, None, geometry)
        fused_passes.statistics(raw, shift)

    def input_gradient() -> None:
        found = dense.conv2d_input_gradient(fused_passes.materialise_gradient(of_raw), x, weight, geometry)
        fused_passes.finish(found.contiguous(memory_format=torch.channels_last), Ending.at(value), torch.empty_like(x))

    def weight_gradient() -> None:  # the output's gradient is there already if the other pass is dense too
        dense.conv2d_weight_gradient(grad, fused_passes.materialise(value), weight, geometry)

    return {"dense_forward": forward, "dense_input": input_gradient, "dense_weight": weight_gradient}


def _pattern(workload: Workload, density: float, generator: torch.Generator) -> Tensor:
    """A weight of ones and zeros."""
    return (torch.rand(_weight_shape(workload), generator=generator) < density).float()


def _sample(plan: Plan, weight: Tensor, x: Tensor, grad: Tensor) -> Sample:
    threads = torch.get_num_threads()
    compressed = Compressed(plan, weight, threads)

    def transpose() -> None:
        compressed.drop_transposed()
        compressed.transposed(threads)

    return Sample(
        compressed.nonzeros,
        forward=_fastest(lambda: passes.forward(compressed, x, None, torch.empty_like(grad))),
        compress=_fastest(lambda: Compressed(plan, weight, threads)),
        transpose=_fastest(transpose),
        input=_fastest(lambda: passes.input_gradient(compressed, grad, torch.empty_like(x))),
        weight=_fastest(lambda: passes.weight_gradient(compressed, x, grad, torch.empty_like(weight))),
    )


def _weight_shape(workload: Workload) -> tuple[int, ...]:
    conv = workload.conv
    return (conv.out_channels, conv.in_channels) if workload.linear else (conv.out_channels, conv.in_channels, *conv.kernel)


def _activations(workload: Workload) -> tuple[Tensor, Tensor]:
    """Input and output gradient; ones, since neither side's time depends on the values."""
    conv = workload.conv
    if workload.linear:
        pixels = conv.images * conv.in_size[0] * conv.in_size[1]
        return torch.ones(pixels, conv.in_channels), torch.ones(pixels, conv.out_channels)
    shapes = (conv.images, conv.in_channels, *conv.in_size), (conv.images, conv.out_channels, *conv.out_size)
    x, grad = (torch.ones(shape).contiguous(memory_format=torch.channels_last) for shape in shapes)
    return x, grad
