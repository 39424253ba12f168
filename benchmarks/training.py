"""Is the speed-up real? A training step with sparse kernels against plain dense torch, in one process, interleaved.

python benchmarks/training.py [--model resnet50] [--batch 16] [--threads 2] [--repeats 9] [--sparsity 0.8 0.9 0.95]
[--alpha 0] [--layer-by-layer] [--default-malloc] [--json FILE].
Dense is the same model without autosparse, channels_last, torch.optim.SGD.
Ours is a whole AutoSparse step: threshold gradients, optimizer, compression of the changed weights; every layer starts at the
sparsity.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import autosparse
from autosparse import AutoSparse
from autosparse.kernels import fused_step

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_memory() -> None:
    """Let glibc keep large blocks instead of returning them to the system: both sides gain."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def make(arguments: argparse.Namespace, sparsity: float | None) -> tuple[Callable[[], None], Any]:
    torch.manual_seed(0)
    model = autosparse.models.build(arguments.model).to(memory_format=torch.channels_last)
    images = torch.randn(arguments.batch, 3, 224, 224).to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (arguments.batch,))
    groups: Any = model.parameters()
    run = None
    if sparsity is not None:
        method = AutoSparse(alpha=arguments.alpha, schedule="constant", start_sparsity=sparsity)
        run = autosparse.sparsify(model, method, epochs=100, steps_per_epoch=5005, example_input=images[:1])
        run.compute(arguments.compute)
        if arguments.layer_by_layer:
            fused_step.remove(model)
        groups = run.param_groups()
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.875, weight_decay=2**-15)
    if run:
        run.bind(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.8, 0.9, 0.95])
    parser.add_argument("--alpha", type=float, default=0.0)
    parser.add_argument("--compute", default="auto")
    parser.add_argument("--layer-by-layer", action="store_true", help="without fusing batch norms with convolutions")
    parser.add_argument("--default-malloc", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="process time instead of wall time, for a busy machine")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.default_malloc:
        keep_memory()
    sides = {"dense": make(arguments, None)} | {f"{100 * each:g} %": make(arguments, each) for each in arguments.sparsity}
    for step, _ in sides.values():
        for _ in range(3):  # warm-up; under "auto" the planner measures here
            step()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.repeats):
        for name, (step, _) in sides.items():
            began = clock()
            step()
            times[name].append(clock() - began)
    threads = f"{arguments.threads} threads, alpha {arguments.alpha}, torch {torch.__version__}"
    print(f"{arguments.model}, batch {arguments.batch}, {threads}")
    print("| step | seconds (median) | dense / ours, medians | dense / ours, minima | sparsity now | what runs sparse |")
    print("|---|---|---|---|---|---|")
    for name, (_, run) in sides.items():
        ratio, best = median(times["dense"]) / median(times[name]), min(times["dense"]) / min(times[name])
        what = "plain torch" if run is None else run.report().compute
        now = "" if run is None else f"{run.sparsity():.2%}"
        print(f"| {name} | {median(times[name]):.3f} | {ratio:.2f} | {best:.2f} | {now} | {what} |")
    if arguments.json:
        arguments.json.write_text(json.dumps({"arguments": vars(arguments) | {"json": None}, "seconds": times}) + "\n")


if __name__ == "__main__":
    main()
