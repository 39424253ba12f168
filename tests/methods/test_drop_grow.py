"""Twenty steps of every drop-and-grow method against a plain NumPy transcription: masks exact, weights to 1e-6."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from autosparse import sparsify
from autosparse.common.tensors import random_stream
from autosparse.methods.dsr import DSR
from autosparse.methods.families.base import Method
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.methods.mest import MEST
from autosparse.methods.random import Random
from autosparse.methods.rigl import RigL
from autosparse.methods.set import SET
from autosparse.methods.snfs import SNFS

from .numpy_net import LAYERS, Array, MomentumSGD, NumpyNet, batches, loss_of, torch_net

EPOCHS, STEPS_PER_EPOCH, TOTAL = 5, 4, 20
LR, MOMENTUM, DECAY, SEED = 0.05, 0.9, 1e-3, 3
Mask = NDArray[np.bool_]


def best(scores: Array, among: Mask, count: int) -> Mask:
    """The `count` highest scores among a set, ties to the lower index."""
    flat = np.where(among, scores, -np.inf).ravel()
    chosen = np.zeros(flat.shape, bool)
    chosen[np.argsort(-flat, kind="stable")[:count]] = True
    return chosen.reshape(scores.shape)


@dataclass
class Reference:
    """A fixed random mask in NumPy; subclasses change it."""

    active: dict[str, int]
    net: NumpyNet = field(default_factory=lambda: NumpyNet.like(torch_net()))
    gate: float = 0.0
    clears: bool = True

    def __post_init__(self) -> None:
        self.generator = random_stream(SEED, "masks")
        self.optimizer = MomentumSGD(LR, MOMENTUM, DECAY)
        self.gradients: dict[str, Array] = {}
        everywhere = {name: np.ones(self.net.weights[name].shape, bool) for name in LAYERS}
        self.masks = {name: best(self.draw(name), everywhere[name], self.active[name]) for name in self.active}
        self.masks = {**everywhere, **self.masks}
        self.hold()

    def draw(self, name: str) -> Array:
        return torch.rand(self.net.weights[name].shape, generator=self.generator).numpy().astype(np.float64)

    def hold(self) -> None:
        for name in LAYERS:
            self.net.weights[name] *= self.masks[name]

    def change(self, name: str, mask: Mask) -> None:
        """A new mask; state of weights that were not active before and after is cleared."""
        if self.clears:
            self.optimizer.buffers[f"{name}.weight"] *= mask & self.masks[name]
        else:
            self.optimizer.buffers[f"{name}.weight"] *= ~(mask & ~self.masks[name])
        self.masks[name] = mask
        self.net.weights[name] *= mask

    def train(self) -> list[tuple[dict[str, Mask], dict[str, Array]]]:
        seen = []
        for t, (x, y) in enumerate(batches(TOTAL)):
            effective = {name: self.net.weights[name] * self.masks[name] for name in LAYERS}
            dense, bias_gradients = self.net.gradients(x.numpy(), y.numpy(), effective)
            if not self.replaces_step(t, dense):
                self.gradients = {name: dense[name] * np.maximum(self.masks[name], self.gate) for name in LAYERS}
                self.optimizer.step(self.net, self.gradients, bias_gradients)
                self.hold()
                self.after(t + 1)
            seen.append((dict(self.masks), {name: value.copy() for name, value in self.net.weights.items()}))
        return seen

    def replaces_step(self, t: int, dense: dict[str, Array]) -> bool:
        return False

    def after(self, t: int) -> None: ...


class RigLReference(Reference):
    def replaces_step(self, t: int, dense: dict[str, Array]) -> bool:
        if t == 0 or t % 3 or t > 0.75 * TOTAL:
            return False
        fraction = 0.3 / 2 * (1 + math.cos(math.pi * t / (0.75 * TOTAL)))
        for name in self.active:
            count = int(fraction * self.masks[name].sum())
            kept = best(np.abs(self.net.weights[name]), self.masks[name], self.masks[name].sum() - count)
            self.change(name, kept | best(np.abs(dense[name]), ~kept, count))
        return True


class SETReference(Reference):
    def after(self, t: int) -> None:
        if t % STEPS_PER_EPOCH == 0 and t < TOTAL:
            for name in self.active:
                kept = self.kept(name, int(0.3 * self.masks[name].sum()))
                self.change(name, kept | best(self.draw(name), ~kept, int(self.masks[name].sum() - kept.sum())))

    def kept(self, name: str, count: int) -> Mask:
        return best(np.abs(self.net.weights[name]), self.masks[name], self.masks[name].sum() - count)


class SignedSETReference(SETReference):
    def kept(self, name: str, count: int) -> Mask:
        weight, mask = self.net.weights[name], self.masks[name]
        kept = mask.copy()
        for side in (mask & (weight > 0), mask & (weight < 0)):
            kept &= ~side | best(np.abs(weight), side, side.sum() - int(0.3 * side.sum()))
        odd = count - int(mask.sum() - kept.sum())
        return best(np.abs(weight), kept, kept.sum() - odd)


class MESTReference(Reference):
    """Mutation .1 until step 12, .05 until 16, then none; an update every epoch of 4 steps; lambda = .5."""

    soft = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gradients = {name: np.zeros(self.masks[name].shape) for name in self.active}
        self.optimizer.buffers = {f"{name}.weight": np.zeros(self.masks[name].shape) for name in self.active}
        self.after(0)

    def after(self, t: int) -> None:
        if t % STEPS_PER_EPOCH or t == TOTAL:
            return
        p = 0.1 if t < 12 else 0.05 if t < 16 else 0.0
        low, high = (0.7, 0.7 - p) if self.soft else (0.7 + p, 0.7)
        for name in self.active:
            size = self.masks[name].size
            importance = np.abs(self.net.weights[name]) + 0.5 * np.abs(self.gradients[name])
            self.change(name, best(importance, self.masks[name], round((1 - low) * size)))
            more = round((1 - high) * size) - round((1 - low) * size)
            self.change(name, self.masks[name] | best(self.draw(name), ~self.masks[name], more))


class SoftMESTReference(MESTReference):
    soft = True


class SNFSReference(Reference):
    def after(self, t: int) -> None:
        if t % STEPS_PER_EPOCH or t == TOTAL:
            return
        rate = 0.005 + 0.495 / 2 * (1 + math.cos(math.pi * t / TOTAL))
        buffers = {name: np.abs(self.optimizer.buffers[f"{name}.weight"]) for name in LAYERS}
        means = np.array([buffers[name][self.masks[name]].mean() for name in LAYERS])
        removed = {name: math.ceil(rate * self.masks[name].sum()) for name in LAYERS}
        wanted = means / means.sum() * sum(removed.values())
        grown = np.floor(wanted).astype(int)
        grown[np.argmax(wanted - grown)] += sum(removed.values()) - grown.sum()
        for name, more in zip(LAYERS, grown, strict=True):
            kept = best(np.abs(self.net.weights[name]), self.masks[name], self.masks[name].sum() - removed[name])
            assert more < 0.99 * (~kept).sum()
            self.change(name, kept | best(buffers[name], ~kept, more))


class DSRReference(Reference):
    threshold = 0.05

    def after(self, t: int) -> None:
        # every 2 steps, every 4 after half of the run, up to step 16
        if t % (2 if t <= 10 else 4) or t > 16:
            return
        before = dict(self.masks)
        for name in LAYERS:
            size = np.abs(self.net.weights[name])
            self.change(name, before[name] & (size >= self.threshold))
            assert self.masks[name].any()
        remaining = np.array([self.masks[name].sum() for name in LAYERS])
        active = sum(before[name].sum() for name in LAYERS)
        pruned = active - remaining.sum()
        self.threshold *= 0.5 if pruned > 1.1 * 0.2 * active else 2 if pruned < 0.9 * 0.2 * active else 1
        wanted = remaining / remaining.sum() * pruned
        grown = np.floor(wanted + 1e-9).astype(int)
        grown[np.argmax(wanted - grown)] += pruned - grown.sum()
        for name, more in zip(LAYERS, grown, strict=True):
            self.change(name, self.masks[name] | best(self.draw(name), ~before[name], more))


# 16 x 12 = 192 and 4 x 16 = 64 weights, 30 % of them active.
BOTH = {"0": 58, "2": 19}  # uniform: 57.6 and 19.2
ERK = {"0": 45, "2": 32}  # 76.8 in proportion to in + out, 28 : 20, are 44.8 and 32
CASES: dict[str, tuple[Method, Reference]] = {
    "random": (Random(sparsity=0.7), Reference({"2": 19})),
    "random-er": (Random(sparsity=0.7, distribution="er"), Reference(ERK)),
    "rigl-uniform": (RigL(sparsity=0.7, update_every=3), RigLReference({"2": 19})),
    "rigl-erk": (RigL(sparsity=0.7, distribution="erk", update_every=3), RigLReference(ERK)),
    "set": (SET(sparsity=0.7), SETReference(ERK)),
    "set-signed": (SET(sparsity=0.7, drop_by="signed"), SignedSETReference(ERK)),
    "mest-em": (
        MEST(sparsity=0.7, mutation=(0.1, 0.05), stages=(0.6, 0.8), update_epochs=1, gradient_weight=0.5, dense_first=False),
        MESTReference(BOTH),
    ),
    "mest-em&s": (
        MEST(
            sparsity=0.7,
            soft=True,
            mutation=(0.1, 0.05),
            stages=(0.6, 0.8),
            update_epochs=1,
            gradient_weight=0.5,
            dense_first=False,
        ),
        SoftMESTReference({"0": 77, "2": 26}),
    ),
    "snfs": (SNFS(sparsity=0.7), SNFSReference(BOTH, gate=1.0, clears=False)),
    "dsr": (
        DSR(sparsity=0.7, threshold=0.05, prune_fraction=0.2, update_every=2, doublings=(0.5,), update_end=0.8),
        DSRReference(BOTH),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_match_numpy(case: str) -> None:
    method, reference = CASES[case]
    model = torch_net()
    sp = sparsify(model, method, epochs=EPOCHS, steps_per_epoch=STEPS_PER_EPOCH, seed=SEED)
    optimizer = torch.optim.SGD(sp.param_groups(weight_decay=DECAY), lr=LR, momentum=MOMENTUM)
    sp.bind(optimizer)
    changes = 0
    for (x, y), (masks, weights) in zip(batches(TOTAL), reference.train(), strict=True):
        before = [mask_of(layer).clone() for layer in sp.layers]
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
        for layer, old in zip(sp.layers, before, strict=True):
            np.testing.assert_array_equal(mask_of(layer).numpy(), masks[layer.name])
            np.testing.assert_allclose(layer.weight().numpy(), weights[layer.name], rtol=0, atol=1e-6)
            changes += not torch.equal(mask_of(layer), old)
        if sp.step % STEPS_PER_EPOCH == 0:
            sp.end_epoch(loss=1.0)
    assert (changes == 0) == isinstance(method, Random)
    np.testing.assert_allclose(model[0].bias.detach().numpy(), reference.net.biases["0"], rtol=0, atol=1e-6)
