"""What AutoSparse costs where zeros gain nothing, and what it gains: training steps against the same model in plain torch.

python benchmarks/overhead.py [MODEL ...] [--threads 1] [--bf16] [--compute dense] [--memory] [--out times.jsonl]
MODEL: mlp, lstm, unet, convnext, gpt, resnet18, resnet50. Plain, during the ramp (30 % zeros, alpha > 0) and at the target
(90 %, alpha 0) take turns; medians, and in brackets the fastest steps. With --out finished measurements are kept and skipped.
One thread is timed in processor time, which other programs disturb least.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import autosparse
from autosparse import AutoSparse
from autosparse.bench.allocations import peak_of
from autosparse.common.turns import clock_for, take_turns

WARM_UP = 4
SIDES = {"plain": None, "ramp": (0.3, 0.75), "target": (0.9, 0.0)}  # sparsity and alpha
Task = tuple[nn.Module, Tensor, Tensor]


class Recurrent(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 64)
        self.rnn = nn.LSTM(64, 128, num_layers=2, batch_first=True)
        self.output = nn.Linear(128, 200)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.rnn(self.embedding(ids))[0]).flatten(0, 1)


def conv_block(channels: int, outputs: int) -> nn.Sequential:
    norms = (nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs))
    convs = (nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.Conv2d(outputs, outputs, 3, padding=1, bias=False))
    return nn.Sequential(convs[0], norms[0], nn.ReLU(), convs[1], norms[1], nn.ReLU())


class UNet(nn.Module):
    """Two levels down and up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv_block(1, width), conv_block(width, 2 * width), conv_block(2 * width, 4 * width)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)])
        self.joined = nn.ModuleList([conv_block(4 * width, 2 * width), conv_block(2 * width, width)])
        self.output = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.down[0](x)
        middle = self.down[1](F.max_pool2d(wide, 2))
        states = self.down[2](F.max_pool2d(middle, 2))
        for up, join, skipped in zip(self.up, self.joined, (middle, wide), strict=True):
            states = join(torch.cat([up(states), skipped], 1))
        return self.output(states)


class ConvNeXtBlock(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(size, size, 7, padding=3, groups=size)
        self.norm, self.wide, self.narrow = nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        states = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.narrow(F.gelu(self.wide(states))).permute(0, 3, 1, 2)


def convnext(sizes: tuple[int, ...], depths: tuple[int, ...], classes: int) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Conv2d(3, sizes[0], 4, 4)]
    for place, (size, depth) in enumerate(zip(sizes, depths, strict=True)):
        parts += [nn.Conv2d(sizes[place - 1], size, 2, 2)] if place else []
        parts += [ConvNeXtBlock(size) for _ in range(depth)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], classes))


class GPTBlock(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(size), nn.LayerNorm(size)])
        self.attend, self.project = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attend(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


def gpt(size: int, blocks: int, words: int) -> nn.Sequential:
    layers = [GPTBlock(size) for _ in range(blocks)]
    return nn.Sequential(nn.Embedding(words, size), *layers, nn.LayerNorm(size), nn.Linear(size, words), nn.Flatten(0, 1))


class BasicBlock(nn.Module):
    def __init__(self, channels: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        shortcut = (nn.Conv2d(channels, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Sequential(*(shortcut if channels != outputs else ()))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


def resnet18() -> nn.Sequential:
    shape = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks = [BasicBlock(*each) for each in shape]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def images(model: nn.Module, batch: int, classes: int, *shape: int) -> Task:
    return model, torch.randn(batch, *shape), torch.randint(classes, (batch,))


def tokens(model: nn.Module, batch: int, length: int, words: int) -> Task:
    return model, torch.randint(words, (batch, length)), torch.randint(words, (batch * length,))


TASKS: dict[str, Callable[[], Task]] = {
    "mlp": lambda: images(mlp(), 128, 10, 64),
    "lstm": lambda: tokens(Recurrent(), 16, 32, 200),
    "unet": lambda: (UNet(8), torch.randn(4, 1, 64, 64), torch.randint(2, (4, 64, 64))),
    "convnext": lambda: images(convnext((96, 192, 384, 768), (3, 3, 9, 3), 1000), 2, 1000, 3, 224, 224),
    "gpt": lambda: tokens(gpt(256, 4, 1000), 8, 128, 1000),
    "resnet18": lambda: images(resnet18(), 8, 1000, 3, 224, 224),
    "resnet50": lambda: images(autosparse.models.resnet50().to(memory_format=torch.channels_last), 16, 1000, 3, 224, 224),
}


def make_step(name: str, side: str, bf16: bool, compute: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model, inputs, labels = TASKS[name]()
    groups: Any = model.parameters()
    sp = None
    if (start := SIDES[side]) is not None:
        method = AutoSparse(alpha=start[1], schedule="constant", start_sparsity=start[0])
        sp = autosparse.sparsify(model, method, epochs=100, steps_per_epoch=1000, example_input=inputs[:1])
        sp.compute(compute)
        groups = sp.param_groups(weight_decay=1e-4)
    optimizer = torch.optim.SGD(groups, lr=1e-5, momentum=0.9, weight_decay=1e-4)
    if sp is not None:
        sp.bind(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()

    for _ in range(WARM_UP):  # gradients and momentum exist from here on, and layers are planned
        step()
    return step


def measure(name: str, threads: int, bf16: bool, compute: str, rounds: int, memory: bool) -> dict[str, Any]:
    steps = {side: make_step(name, side, bf16, compute) for side in SIDES}
    seconds = take_turns(steps, rounds, clock=clock_for(threads), least_rounds=5, enough_seconds=3.0)
    found: dict[str, Any] = {"model": name, "threads": threads, "bf16": bf16, "compute": compute}
    found |= {side: 1e3 * median(times) for side, times in seconds.items()}
    found |= {f"{side}_least": 1e3 * min(times) for side, times in seconds.items()}
    return found | ({f"{side}_peak": peak_of(step) for side, step in steps.items()} if memory else {})


def show(found: dict[str, Any]) -> None:
    plain, least = found["plain"], found["plain_least"]
    ratios = [f"{side} {found[side] / plain:.3f} ({found[f'{side}_least'] / least:.3f})" for side in ("ramp", "target")]
    peaks = [
        f"{side} +{(found[f'{side}_peak'] - found['plain_peak']) / 2**20:.1f} MiB" for side in SIDES if "plain_peak" in found
    ]
    kind = "bfloat16" if found["bf16"] else "float32"
    print(
        f"{found['model']:>9} {kind:>8} {found['threads']} threads: plain {plain:8.2f} ms; ", "; ".join([*ratios, *peaks[1:]])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(TASKS), metavar="MODEL")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--bf16", action="store_true", help="under bfloat16 autocast")
    parser.add_argument("--compute", default="auto", help="auto, dense or sparse")
    parser.add_argument("--memory", action="store_true", help="peak tensor memory of a step as well")
    parser.add_argument("--out", type=Path, help="JSON lines; what stands there is not measured again")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", autosparse.SparsityWarning)
    torch.set_num_threads(arguments.threads)
    chosen = {key: getattr(arguments, key) for key in ("threads", "bf16", "compute")}
    kept = _read(arguments.out)
    for name in arguments.models:
        found = next((each for each in kept if each.items() >= ({"model": name} | chosen).items()), None)
        if found is None:
            found = measure(name, **chosen, rounds=arguments.rounds, memory=arguments.memory)
            _add(arguments.out, found)
        show(found)


def _read(path: Path | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path is not None and path.exists() else []


def _add(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
