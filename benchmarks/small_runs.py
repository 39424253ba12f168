"""One short training run on digits or Fashion-MNIST, as the steering and guard benchmarks need it; results go to JSON lines."""

from __future__ import annotations

import gzip
import json
import math
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import autosparse

BATCH = 100


@dataclass(frozen=True)
class Setting:
    """Everything that decides a run; its JSON is the key by which finished runs are skipped."""

    data: str = "digits"
    net: str = "conv"
    optimizer: str = "sgd"
    seed: int = 0
    method: str = "autosparse"  # or "dense"
    fields: tuple[tuple[str, Any], ...] = ()
    total_decay: float | None = None  # nats of threshold decay over the run, for runs without a target
    guard: str | None = "hold"
    floor: float = 0.01

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def load(data: str, folder: Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if data == "digits":
        from sklearn.datasets import load_digits

        bundle = load_digits()
        images, labels = torch.tensor(bundle.images).float()[:, None] / 16, torch.tensor(bundle.target)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        train, test = order[:1300], order[1300:]
        return images[train], labels[train], images[test], labels[test]
    if folder is None:
        raise SystemExit("Fashion-MNIST needs --fashion-mnist DIR, the folder with its four idx .gz files")
    images, labels = _idx(folder, "train", 10_000)
    test_images, test_labels = _idx(folder, "t10k", 10_000)
    return images, labels, test_images, test_labels


def _idx(folder: Path, part: str, count: int) -> tuple[Tensor, Tensor]:
    raw = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    images = torch.from_numpy(np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28)[:count].copy())
    labels = np.frombuffer(gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    return (images.float() / 255 - 0.286) / 0.353, torch.from_numpy(labels[:count].astype(np.int64))


def build(setting: Setting) -> nn.Module:
    if setting.net == "conv":
        return autosparse.models.small_conv(width=16)
    size = 8 if setting.data == "digits" else 28
    return autosparse.models.small_transformer(image_size=size, rows=1 if size == 8 else 2)


def exclusions(setting: Setting) -> tuple[str, ...]:
    """The Transformer's embedding and head stay dense, as in the paper's language model."""
    return () if setting.net == "conv" else ("embed*", "head")


def train(setting: Setting, folder: Path | None = None) -> dict[str, Any]:
    """Train and measure; eight epochs of 10,000 images, or thirty of the digits."""
    images, labels, test_images, test_labels = load(setting.data, folder)
    epochs = 30 if setting.data == "digits" else 8
    steps = len(labels) // BATCH
    torch.manual_seed(setting.seed)
    model = build(setting)
    rate = (0.1 if setting.net == "conv" else 0.05) if setting.optimizer == "sgd" else 2e-3
    rates = [rate * 0.5 * (1 + math.cos(math.pi * step / (epochs * steps))) for step in range(epochs * steps)]
    sp = None
    groups: Any = [{"params": list(model.parameters()), "weight_decay": 1e-4}]
    if setting.method != "dense":
        method = autosparse.method(setting.method, **dict(setting.fields))
        sp = autosparse.sparsify(
            model, method, epochs=epochs, steps_per_epoch=steps, exclude=exclusions(setting), seed=setting.seed,
            example_input=images[:1], guard=setting.guard, density_floor=setting.floor,
        )  # fmt: skip
        decay = None
        if setting.total_decay is not None:
            # "split" trains the thresholds with SGD at 50 times the rate of AdamW: 0.1
            factor = 50 if setting.optimizer == "split" else 1
            momentum = 0.0 if setting.optimizer == "adamw" else 0.9
            decay = autosparse.threshold_decay(setting.total_decay, [factor * rate for rate in rates], momentum)
        groups = sp.param_groups(weight_decay=1e-4, threshold_decay=decay)
    optimizers: list[torch.optim.Optimizer]
    if setting.optimizer == "sgd":
        optimizers = [torch.optim.SGD(groups, lr=rate, momentum=0.9)]
    elif setting.optimizer == "adamw" or sp is None:
        optimizers = [torch.optim.AdamW(groups, lr=rate)]
    else:
        optimizers = [torch.optim.AdamW(groups[:-1], lr=rate), torch.optim.SGD(groups[-1:], lr=50 * rate, momentum=0.9)]
    if sp:
        sp.bind(*optimizers)
    order = torch.Generator().manual_seed(setting.seed)
    began, mean = time.perf_counter(), math.nan
    for epoch in range(epochs):
        model.train()
        losses = []
        shuffled = torch.randperm(len(labels), generator=order)
        for step in range(steps):
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rates[epoch * steps + step] * (50 if optimizer is not optimizers[0] else 1)
            index = shuffled[step * BATCH : (step + 1) * BATCH]
            loss = cross_entropy(model(images[index]), labels[index], label_smoothing=0.1)
            model.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        if sp:
            sp.end_epoch(mean)
    seconds = time.perf_counter() - began
    model.eval()
    with torch.no_grad():
        predictions = torch.cat([model(part).argmax(1) for part in test_images.split(500)])
    result = {**asdict(setting), "accuracy": 100 * float((predictions == test_labels).float().mean()), "loss": mean}
    result["seconds"] = seconds
    if sp:
        report = sp.report()
        result |= {
            "sparsity": 100 * report.sparsity,
            "train_f": report.train_fraction,
            "test_f": report.test_fraction,
            "layers": {layer.name: round(100 * layer.sparsity, 2) for layer in report.layers},
            "events": len(report.events),
        }
    return result


class Log:
    """Results as JSON lines; a run that is in the file is not run again."""

    def __init__(self, path: Path, folder: Path | None) -> None:
        self.path, self.folder = path, folder
        self.done: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.done[row["key"]] = row

    def run(self, setting: Setting) -> dict[str, Any]:
        if setting.key not in self.done:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", autosparse.SparsityWarning)
                row = {"key": setting.key, **train(setting, self.folder)}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self.done[setting.key] = row
            what = f"{setting.data} {setting.net} {setting.optimizer} seed {setting.seed} {dict(setting.fields)}"
            how = f"D={setting.total_decay} guard={setting.guard}"
            result = f"{row['accuracy']:.2f} % at {row.get('sparsity', 0):.2f} % zeros, {row['seconds']:.0f} s"
            print(f"{what} {how}: {result}", file=sys.stderr, flush=True)
        return self.done[setting.key]
