"""Twenty steps of DST, OptG, LTP, CS and SCL against plain NumPy transcriptions: masks exact, weights to 1e-6."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from autosparse import sparsify
from autosparse.methods import Method
from autosparse.methods.cs import CS
from autosparse.methods.dst import DST
from autosparse.methods.ltp import LTP
from autosparse.methods.optg import OptG
from autosparse.methods.scl import SCL

from .numpy_net import LAYERS, Array, MomentumSGD, NumpyNet, batches, loss_of, torch_net

EPOCHS, STEPS_PER_EPOCH = 6, 4
LR, MOMENTUM, DECAY = 0.05, 0.9, 1e-3
Mask = NDArray[np.bool_]


def sigmoid(x: Array | float) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * np.asarray(x))))


class Reference:
    """A dense net whose weights are seen through `keep`; a method adds its learned tensors and their gradients."""

    learned_decay = 0.0

    def __init__(self) -> None:
        self.net = NumpyNet.like(torch_net())
        self.weights_sgd = MomentumSGD(LR, MOMENTUM, DECAY)
        self.learned_sgd = MomentumSGD(LR, MOMENTUM, self.learned_decay)
        self.learned: dict[str, Array] = {}
        self.epoch = 0
        self.begin()

    def begin(self) -> None: ...

    def keep(self, name: str) -> Array:
        raise NotImplementedError

    def weight_gradient(self, name: str, grad: Array) -> Array:
        return grad * self.keep(name)

    def learned_gradient(self, name: str, grad: Array) -> Array:
        raise NotImplementedError

    def active(self, name: str) -> Mask:
        raise NotImplementedError

    def after_step(self) -> None: ...

    def end_epoch(self) -> None: ...

    def step(self, x: Array, y: Array) -> None:
        effective = {name: self.net.weights[name] * self.keep(name) for name in LAYERS}
        grads, bias_grads = self.net.gradients(x, y, effective)
        learned_grads = {name: self.learned_gradient(name, grads[name]) for name in LAYERS}
        weight_grads = {name: self.weight_gradient(name, grads[name]) for name in LAYERS}
        for name in LAYERS:
            self.learned_sgd.update(name, self.learned[name], learned_grads[name])
        self.weights_sgd.step(self.net, weight_grads, bias_grads)
        self.after_step()


class DSTReference(Reference):
    alpha, reset, learned_decay = 0.08, 0.4, DECAY

    def begin(self) -> None:
        self.learned = {name: np.zeros((len(self.net.weights[name]), 1)) for name in LAYERS}
        self.resets = 0

    def active(self, name: str) -> Mask:
        return np.abs(self.net.weights[name]) - self.learned[name] > 0

    def keep(self, name: str) -> Array:
        return self.active(name).astype(float)

    def slope(self, name: str) -> Array:
        x = np.abs(np.abs(self.net.weights[name]) - self.learned[name])
        return np.where(x <= 0.4, 2 - 4 * x, np.where(x <= 1, 0.4, 0.0))

    def weight_gradient(self, name: str, grad: Array) -> Array:
        weight = self.net.weights[name]
        return grad * self.keep(name) + grad * weight * self.slope(name) * np.sign(weight)

    def learned_gradient(self, name: str, grad: Array) -> Array:
        from_loss = -(grad * self.net.weights[name] * self.slope(name)).sum(1, keepdims=True)
        return np.asarray(from_loss - self.alpha * np.exp(-self.learned[name]))

    def after_step(self) -> None:
        for name in LAYERS:
            if self.active(name).mean() <= self.reset:
                self.learned[name][:] = 0
                self.resets += 1


class OptGReference(Reference):
    sparsity, beta = 0.8, 3.0

    def begin(self) -> None:
        self.learned = {name: np.zeros_like(self.net.weights[name]) for name in LAYERS}
        self.masks: dict[str, Mask] = {name: np.ones(self.net.weights[name].shape, bool) for name in LAYERS}
        self.learned_sgd.lr = LR * float(sigmoid(self.beta * (0 - EPOCHS / 2)))

    def active(self, name: str) -> Mask:
        return self.masks[name]

    def keep(self, name: str) -> Array:
        return self.masks[name].astype(float)

    def learned_gradient(self, name: str, grad: Array) -> Array:
        return grad * self.net.weights[name]

    def end_epoch(self) -> None:
        if self.epoch == EPOCHS:
            return
        ramp = float(sigmoid(self.beta * (self.epoch - EPOCHS / 2)))
        self.learned_sgd.lr = LR * ramp
        scores = np.concatenate([self.learned[name].ravel() for name in LAYERS])
        flat = np.ones(len(scores), bool)
        pruned = round(self.sparsity * ramp * len(scores))
        flat[np.argsort(-scores, kind="stable")[len(scores) - pruned :]] = False
        first = self.masks["0"].size
        self.masks = {"0": flat[:first].reshape(16, 12), "2": flat[first:].reshape(4, 16)}


class LTPReference(Reference):
    """The threshold is in units of the variance of |w| at the start: tau = threshold * variance."""

    penalty, temperature, hard_epoch = 0.02, 0.05, 4

    def begin(self) -> None:
        self.variance = {name: np.abs(self.net.weights[name]).var() for name in LAYERS}
        self.learned, self.hard = {}, dict[str, Mask]()
        for name in LAYERS:
            squares = np.sort((self.net.weights[name] ** 2 / self.variance[name]).ravel())
            below = round(0.1 * squares.size)
            self.learned[name] = np.array([(squares[below - 1] + squares[below]) / 2])

    def active(self, name: str) -> Mask:
        tau = self.learned[name] * self.variance[name]
        return self.hard[name] if self.hard else self.net.weights[name] ** 2 > tau

    def soft(self, name: str) -> Array:
        tau, width = self.learned[name] * self.variance[name], self.temperature * self.variance[name]
        return sigmoid((self.net.weights[name] ** 2 - tau) / width)

    def keep(self, name: str) -> Array:
        return self.hard[name].astype(float) if self.hard else self.soft(name)

    def learned_gradient(self, name: str, grad: Array) -> Array:
        if self.hard:
            return np.zeros(1)
        slope = self.soft(name) * (1 - self.soft(name)) / (self.temperature * self.variance[name])
        by_tau = -(grad * self.net.weights[name] * slope).sum() - self.penalty * slope.sum()
        return np.array([by_tau * self.variance[name]])

    def after_step(self) -> None:
        for name in LAYERS:
            np.maximum(self.learned[name], 0, out=self.learned[name])

    def end_epoch(self) -> None:
        if self.epoch == self.hard_epoch:
            self.hard = {name: self.active(name) for name in LAYERS}


class CSReference(Reference):
    """Two rounds of search and the ticket's, two epochs each; weights go back to the end of epoch 1 each time."""

    s0, penalty, final = -0.01, 1e-3, 50.0

    def begin(self) -> None:
        self.learned = {name: np.full(self.net.weights[name].shape, self.s0) for name in LAYERS}
        self.beta, self.hard = 1.0, dict[str, Mask]()

    def active(self, name: str) -> Mask:
        return self.hard[name] if self.hard else self.learned[name] > 0

    def keep(self, name: str) -> Array:
        mask = self.hard[name] if self.hard else sigmoid(self.beta * self.learned[name])
        return np.asarray(mask / sigmoid(self.s0))

    def learned_gradient(self, name: str, grad: Array) -> Array:
        if self.hard:
            return np.zeros_like(grad)
        mask = sigmoid(self.beta * self.learned[name])
        by_mask = (grad * self.net.weights[name] + self.penalty) / sigmoid(self.s0)
        return np.asarray(by_mask * self.beta * mask * (1 - mask))

    def end_epoch(self) -> None:
        if self.epoch == 1:
            copies = {name: value.copy() for name, value in self.net.weights.items()}
            self.early = copies, {name: value.copy() for name, value in self.net.biases.items()}
        if self.epoch % 2 == 1:
            self.beta = self.final  # the second of two epochs: final^(1/1)
        if self.epoch == 4:
            self.hard = {name: self.learned[name] > 0 for name in LAYERS}

    def next_round(self) -> None:
        if not self.hard:
            for name in LAYERS:
                self.learned[name] = np.minimum(self.beta * self.learned[name], self.s0)
        self.beta = 1.0
        for name in LAYERS:
            self.net.weights[name][:], self.net.biases[name][:] = self.early[0][name], self.early[1][name]


class SCLReference(Reference):
    penalty, start = 0.2, 0.05

    def begin(self) -> None:
        self.learned = {name: np.full(self.net.weights[name].shape, self.start) for name in LAYERS}

    def active(self, name: str) -> Mask:
        return self.learned[name] >= 0

    def keep(self, name: str) -> Array:
        return self.active(name).astype(float)

    def learned_gradient(self, name: str, grad: Array) -> Array:
        price = self.penalty * 0.5 * (1 + math.cos(math.pi * self.epoch / EPOCHS))
        total = grad * self.net.weights[name] + price / (192 + 64)
        return np.asarray(total / np.sqrt((total**2).sum(1, keepdims=True)))


CASES: list[tuple[Method, Callable[[], Reference]]] = [
    (DST(penalty_weight=0.08, reset=0.4), DSTReference),
    (OptG(sparsity=0.8, beta=3.0), OptGReference),
    (LTP(penalty_weight=0.02, temperature=0.05, start_sparsity=0.1, hard_epoch=4), LTPReference),
    (
        CS(
            s_init=-0.01,
            final_beta=50.0,
            penalty_weight=1e-3,
            rounds=2,
            train_ticket=True,
            rewind_epoch=1,
            dense_last=False,
        ),
        CSReference,
    ),
    (SCL(penalty_weight=0.2, m_init=0.05), SCLReference),
]


@pytest.mark.parametrize(("method", "reference"), CASES, ids=[method.about.name for method, _ in CASES])
def test_every_step_matches_numpy(method: Method, reference: Callable[[], Reference]) -> None:
    model, expected = torch_net(), reference()
    sp = sparsify(model, method, epochs=EPOCHS // method.traits.rounds, steps_per_epoch=STEPS_PER_EPOCH, guard=None)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=DECAY), lr=LR, momentum=MOMENTUM)
    sp.bind(optimizer)
    counts = set()
    for step, (x, y) in enumerate(batches(EPOCHS * STEPS_PER_EPOCH)):
        loss = loss_of(model(x), y) + sp.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.step(x.numpy(), y.numpy())
        if (step + 1) % STEPS_PER_EPOCH == 0:
            expected.epoch += 1
            sp.end_epoch()
            expected.end_epoch()
            if isinstance(expected, CSReference) and expected.epoch in (2, 4):
                assert sp.next_round(optimizer)
                expected.next_round()
        for layer in sp.layers:
            np.testing.assert_array_equal(layer.active().numpy(), expected.active(layer.name))
            np.testing.assert_allclose(layer.weight().numpy(), expected.net.weights[layer.name], rtol=0, atol=1e-6)
            seen = expected.net.weights[layer.name] * expected.keep(layer.name)
            np.testing.assert_allclose(layer.effective().numpy(), seen, rtol=0, atol=1e-6)
            (learned,) = layer.parametrization.parameters()
            np.testing.assert_allclose(learned.detach().numpy(), expected.learned[layer.name], rtol=0, atol=1e-6)
        counts.add(sum(int(layer.active().sum()) for layer in sp.layers))
    assert len(counts) > 3 or isinstance(expected, CSReference)  # the masks did move
    assert 0 < sp.sparsity() < 1
    if isinstance(expected, DSTReference):
        assert expected.resets > 0
