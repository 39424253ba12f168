"""What AutoSparse costs on dense compute: a ResNet-50 training step with it against the same model without, in one run.

python benchmarks/overhead.py [--batch 16] [--repeats 21] [--threads 2] [--cpu-time] [--default-malloc];
interleaved medians of time, peak tensor memory. The allocator keeps large blocks, for both, as in `autosparse bench train`.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import autosparse
from autosparse import AutoSparse
from autosparse.bench.training import WARM_UP, keep_memory


def make(sparse: bool, batch: int) -> tuple[Callable[[], None], Any]:
    torch.manual_seed(0)
    model = autosparse.models.resnet50().to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224).to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,))
    sp = None
    groups: Any = model.parameters()
    if sparse:
        sp = autosparse.sparsify(model, AutoSparse(), epochs=100, steps_per_epoch=5005, example_input=images[:1])
        sp.compute("dense")
        groups = sp.param_groups(weight_decay=2**-15)
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.875, weight_decay=2**-15)
    if sp:
        sp.bind(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step, sp


def peak(step: Callable[[], None]) -> int:
    """Peak of allocated tensor bytes during one step, above what is allocated between steps plus that base itself."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    level = highest = 0
    for event in trace.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            level += event.nbytes()
            highest = max(highest, level)
    return highest


def held(sp: Any) -> int:
    """Bytes that live between steps: parameters, gradients, momentum."""
    gc.collect()
    tensors = [value for value in gc.get_objects() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="process time, for a busy machine; use with --threads 1")
    parser.add_argument("--default-malloc", action="store_true", help="leave the allocator as it is")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    torch.set_num_threads(arguments.threads)
    if not arguments.default_malloc:
        keep_memory()
    steps, bases, runs = {}, {}, {}
    for name, sparse in (("dense", False), ("AutoSparse", True)):
        before = held(None)
        steps[name], runs[name] = make(sparse, arguments.batch)
        for _ in range(WARM_UP):  # gradients and momentum exist from here on
            steps[name]()
        bases[name] = held(None) - before
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(arguments.repeats):
        for name, step in steps.items():
            began = clock()
            step()
            times[name].append(clock() - began)
    peaks = {name: bases[name] + peak(step) for name, step in steps.items()}
    for name in steps:
        print(f"{name:>10}: {median(times[name]):.3f} s a step, peak {peaks[name] / 2**20:.0f} MiB of tensors")
    print(f"     ratio: {median(times['AutoSparse']) / median(times['dense']):.3f} of the time "
          f"({min(times['AutoSparse']) / min(times['dense']):.3f} of the shortest), "
          f"{peaks['AutoSparse'] / peaks['dense']:.3f} of the memory")  # fmt: skip
    sp = runs["AutoSparse"]
    spans = []
    for _ in range(5):
        steps["AutoSparse"]()
        began = clock()
        sp.end_epoch(loss=1.0)
        spans.append(clock() - began)
    print(f" end_epoch: {1000 * median(spans):.1f} ms")


if __name__ == "__main__":
    main()
