"""Sparse kernels against dense torch, layer by layer: forward, input gradient, weight gradient, compression.

    python benchmarks/kernels.py --net resnet50 --batch 16 --threads 2
    python benchmarks/kernels.py --net linear --threads 1 --cpu-time
    python benchmarks/kernels.py --net resnet50 --precision bfloat16

Both sides are interleaved in one process; dense torch runs channels_last. A figure is dense time / sparse time; `total` is
all three dense passes / (all three sparse passes + compression), for a mask that changes at every step. The input gradient
transposes the weight first.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from autosparse import kernels
from autosparse.kernels import dense, passes
from autosparse.kernels.compressed import Compressed
from autosparse.kernels.geometry import Geometry
from autosparse.kernels.layer_call import LayerCall
from autosparse.kernels.pixels import PLAIN_STORE, Source


@dataclass(frozen=True)
class Layer:
    """A layer and how often it occurs in its network; size 0 means a linear layer."""

    inputs: int
    outputs: int
    size: int = 0
    kernel: int = 1
    stride: int = 1
    count: int = 1

    @property
    def name(self) -> str:
        if not self.size:
            return f"linear {self.inputs}-{self.outputs}"
        step = f"s{self.stride}" if self.stride > 1 else ""
        return f"{self.kernel}x{self.kernel}{step} {self.inputs}-{self.outputs}@{self.size}"


NETS: dict[str, tuple[Layer, ...]] = {
    "resnet50": (
        Layer(64, 64, 56), Layer(64, 64, 56, 3, count=3), Layer(64, 256, 56, count=4), Layer(256, 64, 56, count=2),
        Layer(256, 128, 56), Layer(128, 128, 56, 3, 2), Layer(256, 512, 56, 1, 2), Layer(128, 512, 28, count=4),
        Layer(512, 128, 28, count=3), Layer(128, 128, 28, 3, count=3), Layer(512, 256, 28), Layer(256, 256, 28, 3, 2),
        Layer(512, 1024, 28, 1, 2), Layer(256, 1024, 14, count=6), Layer(1024, 256, 14, count=5),
        Layer(256, 256, 14, 3, count=5), Layer(1024, 512, 14), Layer(512, 512, 14, 3, 2), Layer(1024, 2048, 14, 1, 2),
        Layer(512, 2048, 7, count=3), Layer(2048, 512, 7, count=2), Layer(512, 512, 7, 3, count=2),
    ),
    "mobilenet": (
        Layer(32, 64, 112), Layer(64, 128, 56), Layer(128, 128, 56), Layer(128, 256, 28), Layer(256, 256, 28),
        Layer(256, 512, 14), Layer(512, 512, 14, count=5), Layer(512, 1024, 7), Layer(1024, 1024, 7),
    ),
    "linear": (Layer(512, 512), Layer(512, 1536), Layer(512, 2048), Layer(2048, 512), Layer(512, 32000)),
    "quick": (
        Layer(64, 64, 56, 3), Layer(64, 256, 56), Layer(256, 64, 56), Layer(128, 128, 28, 3), Layer(512, 128, 28),
        Layer(256, 256, 28, 3, 2), Layer(256, 1024, 14), Layer(1024, 256, 14), Layer(256, 256, 14, 3), Layer(512, 2048, 7),
        Layer(512, 512, 7, 3),
    ),
}  # fmt: skip
PARTS = ("forward", "input", "weight", "compress")


def sparse_weight(layer: Layer, sparsity: float) -> Tensor:
    shape = (layer.outputs, layer.inputs, layer.kernel, layer.kernel) if layer.size else (layer.outputs, layer.inputs)
    weight = torch.randn(shape)
    bound = weight.abs().flatten().kthvalue(max(1, round(sparsity * weight.numel()))).values
    return torch.where(weight.abs() > bound, weight, 0.0)


def dense_calls(layer: Layer, x: Tensor, weight: Tensor) -> dict[str, Callable[[], object]]:
    weight = weight.to(x.dtype)
    if not layer.size:
        grad = torch.randn(x.shape[0], layer.outputs).to(x.dtype)
        return {
            "forward": lambda: dense.linear(x, weight, None),
            "input": lambda: dense.linear_input_gradient(grad, weight),
            "weight": lambda: dense.linear_weight_gradient(grad, x),
        }
    edge = layer.kernel // 2
    geometry = Geometry((layer.stride, layer.stride), (edge, edge), (1, 1))
    weight = weight.contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(dense.conv2d(x, weight, None, geometry))
    return {
        "forward": lambda: dense.conv2d(x, weight, None, geometry),
        "input": lambda: dense.conv2d_input_gradient(grad, x, weight, geometry),
        "weight": lambda: dense.conv2d_weight_gradient(grad, x, weight, geometry),
    }


def sparse_calls(layer: Layer, x: Tensor, weight: Tensor) -> dict[str, Callable[[], object]]:
    threads = torch.get_num_threads()
    edge = layer.kernel // 2
    geometry = Geometry((layer.stride, layer.stride), (edge, edge), (1, 1)) if layer.size else None
    layout = LayerCall(weight, None, geometry, "active", None, (True, True, True)).layout(x)
    cast = weight.to(x.dtype)
    out = dense.conv2d(x, cast, None, geometry) if geometry else dense.linear(x, cast, None)
    grad = torch.randn_like(out)
    compressed = Compressed(layout, weight, threads)
    return {
        "forward": lambda: passes.forward(compressed, Source(x), None, PLAIN_STORE, torch.empty_like(out)),
        "input": lambda: passes.input_gradient(compressed, Source(grad), PLAIN_STORE, torch.empty_like(x)),
        "weight": lambda: passes.weight_gradient(compressed, Source(x), Source(grad), torch.empty_like(weight)),
        "compress": lambda: compressed.fill(weight, threads),
    }


def measure(
    calls: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float], reduce: Callable[[list[float]], float]
) -> dict[str, float]:
    """Milliseconds of every call, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            begin = clock()
            call()
            times[name].append((clock() - begin) * 1e3)
    return {name: reduce(values) for name, values in times.items()}


def keep_memory() -> None:
    """Let the C library keep freed memory, for both sides: page faults would drown the smaller layers."""
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
        libc.mallopt(top_pad, 256 << 20)


def run(options: argparse.Namespace) -> list[dict[str, object]]:
    clock = time.process_time if options.cpu_time else time.perf_counter
    reduce = min if options.minimum else statistics.median
    rows: list[dict[str, object]] = []
    print(
        f"{'layer':22s} {'dense ms f/x/w':>20s} {'GF/s f/x/w':>12s}"
        + "".join(f" | {f'{100 * s:.0f} %: f/x/w total (build)':>36s}" for s in options.sparsity)
    )
    for layer in NETS[options.net]:
        shape = (options.batch, layer.inputs, layer.size, layer.size) if layer.size else (options.tokens, layer.inputs)
        x = torch.randn(shape).to(getattr(torch, options.precision))
        if layer.size:
            x = x.contiguous(memory_format=torch.channels_last)
        calls = {f"dense {name}": call for name, call in dense_calls(layer, x, sparse_weight(layer, 0.9)).items()}
        for sparsity in options.sparsity:
            sparse = sparse_calls(layer, x, sparse_weight(layer, sparsity))
            calls |= {f"{sparsity} {name}": call for name, call in sparse.items()}
        times = measure(calls, options.repeats, clock, reduce)
        pixels = options.batch * ((layer.size - 1) // layer.stride + 1) ** 2 if layer.size else options.tokens
        work = 2e-6 * pixels * layer.inputs * layer.outputs * layer.kernel**2
        reference = [times[f"dense {part}"] for part in PARTS[:3]]
        speeds = "/".join(f"{work / t:.0f}" for t in reference)
        line = f"{layer.name:22s} {'/'.join(f'{t:.2f}' for t in reference):>20s} {speeds:>12s}"
        for sparsity in options.sparsity:
            ours = [times[f"{sparsity} {part}"] for part in PARTS]
            ratios = "/".join(f"{a / b:.2f}" for a, b in zip(reference, ours, strict=False))
            line += f" | {ratios:>15s} {sum(reference) / sum(ours):6.2f} ({ours[3]:.2f} ms)"
        print(line, flush=True)
        rows.append({"layer": layer.name, "count": layer.count, "ms": times})
    return rows


def summarize(rows: list[dict[str, object]], sparsities: list[float]) -> None:
    """Ratios of the sums over the network's layers, each as often as it occurs."""

    def total(prefix: str, parts: tuple[str, ...]) -> float:
        return sum(row["count"] * row["ms"][f"{prefix} {part}"] for row in rows for part in parts)  # type: ignore[index]

    for sparsity in sparsities:
        ratios = [total("dense", (part,)) / total(str(sparsity), (part,)) for part in PARTS[:3]]
        whole = total("dense", PARTS[:3]) / total(str(sparsity), PARTS)
        print(
            f"{100 * sparsity:.0f} %: forward {ratios[0]:.2f}, input {ratios[1]:.2f}, weight {ratios[2]:.2f}, total {whole:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=sorted(NETS), default="resnet50")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2048, help="rows of the input of linear layers")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.8, 0.9, 0.95])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor time of the process: robust on a busy machine, 1 thread"
    )
    parser.add_argument("--minimum", action="store_true", help="the fastest repetition, not the median")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of activations, on both sides")
    parser.add_argument("--json", type=Path, help="write the times here as well")
    options = parser.parse_args()
    if not kernels.available():
        raise SystemExit(f"no sparse kernels: {kernels.why_not()}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    keep_memory()
    clock = "process CPU time" if options.cpu_time else "wall clock"
    print(f"{kernels.instruction_set()}, threads {options.threads}, {clock}; dense: torch {torch.__version__} channels_last")
    rows = run(options)
    summarize(rows, options.sparsity)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
