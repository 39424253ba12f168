"""Short runs in a plain training loop that are saved in the middle of an epoch, on data that needs no random numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import autosparse
from autosparse import AutoSparse, AutoTune

FIXTURES = Path(__file__).with_name("v0.1.0")
STATES = FIXTURES / "states"
REFERENCE = FIXTURES / "reference.json"
EPOCHS, STEPS, BATCH = 6, 4, 8  # of all rounds together
TOTAL = EPOCHS * STEPS
SAVED_AT = 14  # inside the fourth epoch and, where there are three rounds, inside the second


@dataclass(frozen=True)
class Case:
    """A method with settings of its own; every case has a file of its name in the folder of states."""

    method: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "sgd"
    scores: bool = False
    rounds: int = 1
    epochs: int = EPOCHS  # of one round; release 0.1 was told those of all rounds for cs, 6
    corrected: Mapping[str, float] = field(default_factory=dict)  # figures that 0.1 counted wrongly


TUNED = AutoTune(epochs=4, tolerance=0.02, up=0.1, down=0.05, reference=REFERENCE)
CASES = {
    "autosparse-target": Case("autosparse", {"alpha": 0.75, "zero_epoch": 5, "start_sparsity": 0.2, "target_sparsity": 0.6}),
    "autosparse-autotune": Case("autosparse", {"autotune": TUNED, "start_sparsity": 0.2, "zero_epoch": 5}),
    "autosparse-channel": Case("autosparse", {"threshold": "channel", "g": "exp", "start_sparsity": 0.6}, "adamw"),
    # 0.1 took 1 - b for the share of weights that receive a gradient: 0.7 for 26 of 36
    "autosparse-backward": Case(
        "autosparse",
        {"backward_sparsity": 0.3, "dense_grad_every": 2, "schedule": "linear"},
        corrected={"train_fraction": 0.6469068171757415},
    ),
    "rigl": Case("rigl", {"sparsity": 0.75, "update_every": 4}, "adamw"),
    "dsr": Case("dsr", {"sparsity": 0.75, "update_every": 2, "threshold": 0.02}),
    "snfs": Case("snfs", {"sparsity": 0.75}),
    "mest": Case("mest", {"sparsity": 0.75, "mutation": (0.1, 0.05), "update_epochs": 1, "gradient_weight": 0.0}),
    "topkast": Case("topkast", {"sparsity": 0.75, "backward_sparsity": 0.5}, "adamw"),
    "gmp": Case("gmp", {"sparsity": 0.75, "update_every": 2}),
    "dns": Case("dns", {"c_rate": 0.0, "gamma": 0.01}),
    "dst": Case("dst", {"penalty_weight": 0.03}, "adamw"),
    "ltp": Case("ltp", {"start_sparsity": 0.3, "penalty_weight": 1e-4, "hard_epoch": 5}),
    "optg": Case("optg", {"sparsity": 0.75, "beta": 50.0}),
    "swat": Case("swat", {"sparsity": 0.75, "activation_sparsity": 0.5, "update_every": 3}),
    "snip": Case("snip", {"sparsity": 0.75}, scores=True),
    "cs": Case("cs", {"rounds": 2, "train_ticket": True, "rewind_epoch": 1, "penalty_weight": 1e-4}, rounds=3, epochs=2),
    "lottery": Case("lottery", {"sparsity": 0.75, "rounds": 2, "rewind_epoch": 1}, rounds=3, epochs=2),
    "prune_retrain": Case("prune_retrain", {"sparsity": 0.75, "rounds": 2}, rounds=3, epochs=2),
}


def scattered(*shape: int, seed: int) -> Tensor:
    """Numbers in [-1, 1) that look random, the same on every machine and with every version of torch."""
    place = torch.arange(math.prod(shape)) + 1_000_003 * seed
    mixed = place * 2_654_435_761 % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 73_244_475 % 2**32
    return (mixed.double() / 2**31 - 1).float().reshape(shape)


def batch(number: int) -> tuple[Tensor, Tensor]:
    """Noise of four by four pixels with one brighter row, whose number is the class."""
    images = scattered(BATCH, 1, 4, 4, seed=number)
    labels = (torch.arange(BATCH) + number) % 3
    images[torch.arange(BATCH), 0, labels] += 2
    return images, labels


def make_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), nn.Tanh(),
        nn.Flatten(), nn.Linear(32, 8, bias=False), nn.Tanh(), nn.Linear(8, 3),
    )  # fmt: skip


class Run:
    """A sparsified net with its optimizer; `done` counts the steps of all rounds."""

    steps_per_round = TOTAL

    def __init__(self, model: nn.Module, method: Any, epochs: int, optimizer: str = "sgd") -> None:
        self.model, self.done = model, 0
        self.sp = autosparse.sparsify(model, method, epochs=epochs, steps_per_epoch=STEPS)
        groups = self.sp.param_groups(weight_decay=1e-3)
        self.optimizer: torch.optim.Optimizer
        self.optimizer = torch.optim.AdamW(groups, lr=0.01) if optimizer == "adamw" else torch.optim.SGD(groups, 0.1, 0.9)
        self.sp.bind(self.optimizer)

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        return batch(number)

    def train(self, until: int) -> list[float]:
        """Train up to a step; the losses on the way."""
        return [self.step() for _ in range(self.done, until)]

    def step(self) -> float:
        if self.done and self.done % self.steps_per_round == 0:
            self.sp.next_round(self.optimizer)
        images, labels = self.batch(self.done)
        loss = cross_entropy(self.model(images), labels) + self.sp.penalty()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.done += 1
        if self.done % STEPS == 0:
            self.sp.end_epoch(loss=loss)
        return loss.item()

    def state(self) -> dict[str, Any]:
        """What a user saves."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "sp": self.sp.state_dict()}
        return {**parts, "done": self.done}

    def load(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sp.load_state_dict(state["sp"])
        self.done = state["done"]

    def figures(self) -> dict[str, float]:
        """What the run reports of itself."""
        cost = self.sp.cost
        figures = {"alpha": self.sp.alpha, "sparsity": self.sp.sparsity()}
        return {**figures, "train_fraction": cost.train_fraction, "test_fraction": cost.test_fraction}

    def weights(self) -> dict[str, Tensor]:
        """Stored tensors under the keys of the sparsified model, and where those of the plain model are not zero."""
        active = {f"active {name}": tensor != 0 for name, tensor in self.sp.dense_state_dict().items()}
        return {**self.model.state_dict(), **active}


class PlainRun(Run):
    """A case on noise with bright rows."""

    def __init__(self, case: Case) -> None:
        self.case, self.steps_per_round = case, TOTAL // case.rounds
        super().__init__(make_net(), autosparse.method(case.method, **case.fields), case.epochs, case.optimizer)

    def score(self) -> None:
        if self.case.scores:
            self.sp.score([batch(0), batch(1)], lambda model, data: cross_entropy(model(data[0]), data[1]))


class PlannedRun(Run):
    """A run under compute("auto") with a convolution just large enough to be planned for."""

    def __init__(self) -> None:
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        )  # fmt: skip
        super().__init__(net, AutoSparse(alpha=0.5, zero_epoch=3, target_sparsity=0.8), EPOCHS)
        self.sp.compute("auto")

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        images, labels = scattered(4, 3, 96, 96, seed=number), (torch.arange(4) + number) % 5
        images[torch.arange(4), labels % 3] *= 2 + labels.reshape(4, 1, 1)  # the noise is louder in one channel
        return images, labels
