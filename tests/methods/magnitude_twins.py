"""The magnitude family in plain NumPy: each twin is one method's equations and nothing else."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .numpy_net import LAYERS, Array, MomentumSGD, NumpyNet

Mask = NDArray[np.bool_]
Tensors = dict[str, Array]
EPOCHS, PER_EPOCH = 4, 5
STEPS = EPOCHS * PER_EPOCH
LR, DECAY = 0.05, 0.01


def top(magnitudes: Array, count: int) -> Mask:
    """The `count` largest, ties to the lower index."""
    order = np.argsort(-magnitudes.ravel(), kind="stable")
    mask = np.zeros(magnitudes.size, bool)
    mask[order[:count]] = True
    return mask.reshape(magnitudes.shape)


def count_of(size: int, sparsity: float) -> int:
    return max(1, math.floor(round(size * (1 - sparsity), 6) + 0.5))


def sigmoid_cosine(progress: float) -> float:
    return max((1 + math.cos(math.pi * progress)) / 2, 1 - 1 / (1 + math.exp(6 - 12 * progress)))


def cubic(step: int, first: int, last: int, final: float) -> float:
    if step < first:
        return 0.0
    return final * (1 - (1 - min(1.0, (step - first) / (last - first))) ** 3)


class Twin:
    """One method in NumPy: what the forward pass sees, what the stored weights receive, what happens after a step."""

    def __init__(self, net: NumpyNet) -> None:
        self.net = net
        self.masks: dict[str, Mask] = {name: np.ones_like(net.weights[name], bool) for name in LAYERS}
        self.optimizer = MomentumSGD(LR, decay=DECAY)
        self.after(0)

    def alpha(self, step: int) -> float:
        return 1.0

    def effective(self, name: str) -> Array:
        return np.asarray(self.net.weights[name] * self.masks[name])

    def received(self, name: str, gradient: Array, step: int) -> Array:
        return np.where(self.masks[name], gradient, self.alpha(step) * gradient)

    def after(self, step: int) -> None:
        raise NotImplementedError

    def gradients(self, x: Array, y: Array, step: int) -> tuple[Tensors, Tensors]:
        return self.net.gradients(x, y, {name: self.effective(name) for name in LAYERS})

    def step(self, x: Array, y: Array, step: int) -> None:
        dense, biases = self.gradients(x, y, step)
        self.optimizer.step(self.net, {name: self.received(name, dense[name], step) for name in LAYERS}, biases)
        self.after(step + 1)


class TopKASTTwin(Twin):
    def __init__(self, net: NumpyNet, forward: float, backward: float, decay: float, power: float = 1.0) -> None:
        self.forward, self.backward, self.decay, self.power = forward, backward, decay, power
        for name in LAYERS:
            net.weights[name] = np.sign(net.weights[name]) * np.abs(net.weights[name]) ** (1 / power)
        super().__init__(net)

    def theta(self, name: str) -> Array:
        return np.asarray(self.net.weights[name] * np.abs(self.net.weights[name]) ** (self.power - 1))

    def effective(self, name: str) -> Array:
        return np.asarray(self.theta(name) * self.masks[name])

    def received(self, name: str, gradient: Array, step: int) -> Array:
        inside, reach, theta = self.masks[name], self.reach[name], self.theta(name)
        density = inside.sum() / inside.size
        gated = np.where(inside, 1.0, np.where(reach, self.alpha(step), 0.0)) * gradient
        pull = self.decay * theta * np.where(inside, 1.0, np.where(reach, 1 / density, 0.0))
        return np.asarray((gated + pull) * self.power * np.abs(self.net.weights[name]) ** (self.power - 1))

    def after(self, step: int) -> None:
        sizes = {name: np.abs(self.theta(name)) for name in LAYERS}
        self.masks = {name: top(each, count_of(each.size, self.forward)) for name, each in sizes.items()}
        self.reach = {name: top(each, count_of(each.size, self.backward)) for name, each in sizes.items()}


class TopKASTGATwin(TopKASTTwin):
    def alpha(self, step: int) -> float:
        return 0.6 * sigmoid_cosine((step // PER_EPOCH) / EPOCHS)


class SoftTwin(TopKASTGATwin):
    def effective(self, name: str) -> Array:
        weight, mask = self.net.weights[name], self.masks[name]
        threshold = np.abs(weight[~mask]).max()
        return np.asarray(np.sign(weight) * np.maximum(np.abs(weight) - threshold, 0) * mask)


class DNWTwin(Twin):
    def after(self, step: int) -> None:
        self.masks = {name: top(np.abs(each), count_of(each.size, 0.7)) for name, each in self.net.weights.items()}


class DNWGATwin(DNWTwin):
    def alpha(self, step: int) -> float:
        return 0.9 * (1 - (step // PER_EPOCH) / EPOCHS) if step < 3 * PER_EPOCH else 0.0


class GMPTwin(Twin):
    """Steps 4 to 15, every 4, and at the end of the ramp; the last layer stops at 60 %."""

    def alpha(self, step: int) -> float:
        return 0.0

    def after(self, step: int) -> None:
        if step in (4, 8, 12, 15):
            for name, final in {"0": 0.8, "2": 0.6}.items():
                weight = self.net.weights[name]
                score = np.where(self.masks[name], np.abs(weight), -1.0)
                self.masks[name] = top(score, count_of(weight.size, cubic(step, 4, 15, final)))
                weight *= self.masks[name]
                self.optimizer.buffers[f"{name}.weight"] *= self.masks[name]


class DPFTwin(Twin):
    """Every 3 steps over the whole run, the ramp ends at step 10; one ranking over both layers."""

    def after(self, step: int) -> None:
        if step % 3 == 0 or step == 10:
            sizes = {name: np.abs(self.net.weights[name]) for name in LAYERS}
            for each in sizes.values():
                each.flat[each.argmax()] = np.inf
            ranked = np.concatenate([sizes[name].ravel() for name in LAYERS])
            mask = top(ranked, count_of(ranked.size, cubic(step, 0, 10, 0.9)))
            cut = sizes["0"].size
            self.masks = {"0": mask[:cut].reshape(16, 12), "2": mask[cut:].reshape(4, 16)}


class SWATTwin(Twin):
    """Thresholds of weights and inputs measured every 3 steps and at the end, absolute between."""

    def after(self, step: int) -> None:
        weights = {name: np.abs(each) for name, each in self.net.weights.items()}
        if step % 3 == 0 or step == STEPS:
            self.masks = {name: top(each, count_of(each.size, 0.75)) for name, each in weights.items()}
            self.cuts = {name: each[self.masks[name]].min() for name, each in weights.items()}
            self.bounds: dict[str, float] = {}
        else:
            self.masks = {name: each >= self.cuts[name] for name, each in weights.items()}

    def largest(self, name: str, inputs: Array) -> Array:
        if name not in self.bounds:
            left_out = math.floor(0.6 * inputs.size + 0.5)
            self.bounds[name] = float(np.sort(np.abs(inputs).ravel())[left_out])
        return np.asarray(inputs * (np.abs(inputs) >= self.bounds[name]))

    def gradients(self, x: Array, y: Array, step: int) -> tuple[Tensors, Tensors]:
        first, second = self.effective("0"), self.effective("2")
        before = x @ first.T + self.net.biases["0"]
        hidden = np.maximum(before, 0)
        at_output = (hidden @ second.T + self.net.biases["2"] - y) / len(x)
        at_hidden = (at_output @ second) * (before > 0)
        weights = {"0": at_hidden.T @ self.largest("0", x), "2": at_output.T @ self.largest("2", hidden)}
        return weights, {"0": at_hidden.sum(0), "2": at_output.sum(0)}
