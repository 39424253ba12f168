"""Draws the figures of the documentation with the project's own code: python docs/make_figures.py (about a minute)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import autosparse
from autosparse import AutoSparse, schedules
from autosparse.methods.target import TargetController

FOLDER = Path(__file__).parent / "figures"
EPOCHS, BATCH, LR, MOMENTUM = 30, 64, 0.1, 0.9
TRAINED = 1347  # of 1,797 digits; the others test
COLORS = ("#4363d8", "#e6772e", "#3a9e4f", "#8e44ad", "#c0392b", "#7f8c8d")


def digits() -> tuple[Tensor, Tensor]:
    bundle = load_digits()
    order = torch.randperm(len(bundle.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(bundle.images, dtype=torch.float32)[:, None] / 16
    return images[order], torch.tensor(bundle.target)[order]


def conv_net() -> nn.Sequential:
    """Three convolutions and a classifier: 25,744 weights."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def rates() -> list[float]:
    """The learning rate of every step: half a cosine wave."""
    steps = EPOCHS * (TRAINED // BATCH)
    return [LR * schedules.cosine(step / steps) for step in range(steps)]


def train(method: AutoSparse, total_decay: float | None = None) -> tuple[autosparse.Sparsifier, float]:
    """One run on the digits; gives the Sparsifier and the test accuracy."""
    images, labels = digits()
    model, steps, lrs = conv_net(), TRAINED // BATCH, rates()
    decay = None if total_decay is None else autosparse.threshold_decay(total_decay, lrs, MOMENTUM)
    sp = autosparse.sparsify(model, method, epochs=EPOCHS, steps_per_epoch=steps, example_input=images[:1])
    opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-4, threshold_decay=decay), lr=LR, momentum=MOMENTUM)
    sp.bind(opt)
    shuffle = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        model.train()
        losses = []
        for index in torch.randperm(TRAINED, generator=shuffle)[: steps * BATCH].view(steps, BATCH):
            for group in opt.param_groups:
                group["lr"] = lrs[sp.step]
            loss = cross_entropy(model(images[index]), labels[index], label_smoothing=0.1)
            opt.zero_grad()
            torch.autograd.backward(loss)
            opt.step()
            losses.append(loss.item())
        sp.end_epoch(sum(losses) / len(losses))
    model.eval()
    with torch.no_grad():
        right = model(images[TRAINED:]).argmax(1) == labels[TRAINED:]
    return sp, float(right.float().mean())


def save(figure: Any, name: str) -> None:
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
    print(f"{name}.svg")


def axes(count: int, **options: Any) -> tuple[Any, Sequence[Any]]:
    figure, found = plt.subplots(1, count, figsize=(4.6 * count, 3.3), squeeze=False, **options)
    return figure, found[0]


def alpha_schedules() -> None:
    figure, left = plt.subplots(figsize=(7, 3.3))
    epochs = range(101)
    for name, color in zip(schedules.ALPHA_SCHEDULES, COLORS, strict=True):
        values = [0.75 * schedules.annealing(name, epoch, 100, beta=0.05) for epoch in epochs]
        label = "exponential, beta 0.05" if name == "exponential" else name
        left.plot(epochs, values, color=color, label=label, linewidth=2.2 if name == "sigmoid-cosine" else 1.2)
    zeroed = autosparse.GradientAnnealing(alpha=0.75, zero_epoch=45)
    left.plot(epochs, [zeroed.at(epoch, 100) for epoch in epochs], "k:", label="sigmoid-cosine, zero_epoch=45")
    left.set(xlabel="epoch of 100", ylabel="alpha (alpha=0.75)", ylim=(0, 0.8))
    left.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.02, 1))
    save(figure, "alpha-schedules")


def soft_threshold() -> None:
    figure, (left, right) = axes(2)
    weight = torch.linspace(-1, 1, 801)
    threshold = 0.3
    left.plot(weight, weight, color="#bbbbbb", label="w")
    left.plot(weight, autosparse.soft_threshold(weight, threshold), color=COLORS[0], label="effective weight, T = 0.3")
    left.set(xlabel="stored weight w", ylabel="what the forward pass sees")
    for alpha, color in zip((0.0, 0.5, 1.0), COLORS, strict=False):
        leaf = weight.clone().requires_grad_()
        torch.autograd.backward(autosparse.soft_threshold(leaf, threshold, gate=alpha).sum())
        assert leaf.grad is not None
        label = {0.0: "alpha = 0 (STR)", 0.5: "alpha = 0.5", 1.0: "alpha = 1 (straight-through)"}[alpha]
        right.plot(weight, leaf.grad, color=color, label=label)
    right.set(xlabel="stored weight w", ylabel="gradient to w, as a factor on G", ylim=(-0.05, 1.5))
    for each in (left, right):
        each.legend(fontsize=7, loc="upper left" if each is left else "upper center")
    save(figure, "soft-threshold")


def threshold_under_decay() -> None:
    """s and T when the loss says nothing: a real optimizer with a gradient of zero."""
    figure, (left, right) = axes(2)
    for total, color in zip((1.0, 3.0, 8.0), COLORS, strict=False):
        s = nn.Parameter(torch.tensor([-5.0]))
        decay = autosparse.threshold_decay(total, rates(), MOMENTUM)
        opt = torch.optim.SGD([{"params": [s], "weight_decay": decay}], lr=LR, momentum=MOMENTUM)
        path = [s.item()]
        for rate in rates():
            opt.param_groups[0]["lr"] = rate
            s.grad = torch.zeros_like(s)
            opt.step()
            path.append(s.item())
        label = f"D = {total:g}: ends at s = {path[-1]:.3f}"
        left.plot(path, color=color, label=label)
        right.plot([1 / (1 + math.exp(-value)) for value in path], color=color, label=f"D = {total:g}")
    left.set(xlabel="optimizer step", ylabel="s, from -5")
    right.set(xlabel="optimizer step", ylabel="T = sigmoid(s)", ylim=(0, 0.55))
    for each in (left, right):
        each.legend(fontsize=7)
    save(figure, "threshold-under-decay")


def three_alphas() -> None:
    figure, (left, right) = axes(2)
    for alpha, color in zip((0.0, 0.4, 0.75), COLORS, strict=False):
        sp, accuracy = train(AutoSparse(alpha=alpha), total_decay=3.0)
        epochs = [row["epoch"] for row in sp.history]
        label = f"alpha = {alpha:g}"
        left.plot(epochs, [100 * row["sparsity"] for row in sp.history], color=color, label=label)
        right.plot(epochs, [row["loss"] for row in sp.history], color=color, label=label)
        told = f"{sp.sparsity():.2%} zeros, test accuracy {accuracy:.2%}, train F {sp.cost.train_fraction:.3f}"
        print(f"  alpha {alpha}: {told}, {len(sp.events)} guard events")
    left.set(xlabel="epoch", ylabel="zeros, %", ylim=(0, 100))
    right.set(xlabel="epoch", ylabel="training loss (label smoothing 0.1)")
    for each in (left, right):
        each.legend(fontsize=7)
    save(figure, "three-alphas")


def target() -> None:
    figure, (left, right) = axes(2, sharey=True)
    layered = None
    for ramp, color in zip((0.7, 0.2), COLORS, strict=False):
        sp, accuracy = train(AutoSparse(target_sparsity=0.9, target_ramp=ramp))
        controller = sp.parts["controller"]
        assert isinstance(controller, TargetController)
        steps, wanted, reached, _ = zip(*controller.history, strict=True)
        left.plot(steps, [100 * value for value in wanted], color="k", linestyle=":", linewidth=1)
        left.plot(steps, [100 * value for value in reached], color=color, label=f"reached, target_ramp={ramp}")
        fractions = f"Train F {sp.cost.train_fraction:.3f}, Test F {sp.cost.test_fraction:.3f}"
        print(f"  ramp {ramp}: {sp.sparsity():.2%} zeros, test accuracy {accuracy:.2%}, {fractions}")
        layered = layered or sp
    assert layered is not None
    left.plot([], [], "k:", label="wanted")
    left.set(xlabel="optimizer step", ylabel="zeros, %", ylim=(0, 100))
    for number, (layer, color) in enumerate(zip(layered.layers, COLORS, strict=False)):
        shares = [100 * (1 - row["densities"][number]) for row in layered.history]
        kind = f"{layer.kind} {'x'.join(map(str, layer.shape))}"
        right.plot([row["epoch"] for row in layered.history], shares, color=color, label=kind)
    right.set(xlabel="epoch, target_ramp=0.7", ylabel="zeros of each layer, %")
    for each in (left, right):
        each.legend(fontsize=7, loc="lower right")
    save(figure, "target")


def main() -> None:
    torch.set_num_threads(1)
    # the same file on every machine with the same numbers
    plt.rcParams.update({"svg.hashsalt": "autosparse", "svg.fonttype": "none", "font.size": 9, "axes.grid": True})
    plt.rcParams.update({"grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})
    FOLDER.mkdir(exist_ok=True)
    for draw in (alpha_schedules, soft_threshold, threshold_under_decay, three_alphas, target):
        draw()


if __name__ == "__main__":
    main()
