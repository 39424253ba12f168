"""Short runs on the digits of scikit-learn that can stop and go on anywhere: for the tests and their worker processes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import autosparse
from autosparse.layer import Layer
from autosparse.methods import Method
from autosparse.models import small_conv, small_transformer
from autosparse.parametrizations import Masked

from ..sparse_nets import prepare_for
from .settings import BATCH, EPOCHS, ROWS, SCORED_BATCHES, STEPS, TOTAL, Moment, Row

NETS = ("conv", "transformer")
OPTIMIZERS = ("sgd", "adamw")
CPU = torch.device("cpu")
COMBINATIONS = tuple((net, optimizer) for net in NETS for optimizer in OPTIMIZERS)


def make_method(name: str) -> Method:
    return autosparse.method(name, **ROWS[name].fields)


def make_net(kind: str) -> nn.Module:
    if kind == "conv":
        return small_conv(width=4)
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10))
    return small_transformer(image_size=8, rows=1, size=16, blocks=1, heads=2, feed_forward=32)


def make_optimizer(name: str, groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9) if name == "sgd" else torch.optim.AdamW(groups, lr=0.01)


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """256 images; no pixel is always 0, so that every active weight moves."""
    images, targets = load_digits(return_X_y=True)
    pixels = torch.tensor(images[: BATCH * STEPS], dtype=torch.float32).reshape(-1, 1, 8, 8)
    return (pixels / 16 - 0.3) / 0.4, torch.tensor(targets[: BATCH * STEPS])


def batch(number: int) -> tuple[Tensor, Tensor]:
    images, targets = digits()
    first = number % STEPS * BATCH
    return images[first : first + BATCH], targets[first : first + BATCH]


def loss_of(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(data[0]), data[1])


@dataclass
class Run:
    """A sparsified net with its optimizer; `forward` is the wrapped net where there is a wrapper."""

    row: Row
    model: nn.Module
    sp: autosparse.Sparsifier
    opt: torch.optim.Optimizer
    forward: nn.Module
    rows: slice = field(default_factory=lambda: slice(None))  # this rank's part of every batch
    device: torch.device = CPU
    done: int = 0  # steps, all rounds together
    round: int = 0

    def data(self, number: int) -> tuple[Tensor, Tensor]:
        images, targets = batch(number)
        return images[self.rows].to(self.device), targets[self.rows].to(self.device)

    def score(self) -> None:
        if self.row.scores:
            self.sp.score([self.data(number) for number in range(SCORED_BATCHES)], loss_of)

    def moment(self) -> Moment:
        step = self.done % (TOTAL // self.row.rounds)
        return Moment(step, step // STEPS, self.round)

    def begin_round(self) -> bool:
        """Go on to the next round where one is due."""
        if self.round == self.done // (TOTAL // self.row.rounds):
            return False
        self.round += 1
        return self.sp.next_round(self.opt)

    def backward(self) -> float:
        """Forward and backward; gives the loss without the penalty."""
        loss = loss_of(self.forward, self.data(self.done))
        self.opt.zero_grad()
        (loss + self.sp.penalty()).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def step(self) -> float:
        loss = self.backward()
        self.opt.step()
        self.finish_step(loss)
        return loss

    def finish_step(self, loss: float) -> None:
        """Count the step, and close the epoch that it ends."""
        self.done += 1
        if self.done % STEPS == 0:
            self.sp.end_epoch(loss=loss)

    def advance(self, until: int, watch: Callable[[], Any] | None = None) -> list[float]:
        """Train up to a step; `watch` is called before every step, when its round has begun."""
        losses = []
        while self.done < until:
            self.begin_round()
            if watch:
                watch()
            losses.append(self.step())
        return losses

    def state(self) -> dict[str, Any]:
        """What a user saves; a snapshot."""
        parts = {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "sp": self.sp.state_dict()}
        return copy.deepcopy({**parts, "done": self.done, "round": self.round})

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.opt.load_state_dict(state["opt"])
        self.sp.load_state_dict(state["sp"])
        self.done, self.round = state["done"], state["round"]

    def copy(self, optimizer: str) -> Run:
        """A deep copy with an optimizer of its own."""
        model, sp = copy.deepcopy((self.model, self.sp))
        opt = make_optimizer(optimizer, sp.param_groups(weight_decay=1e-3))
        opt.load_state_dict(copy.deepcopy(self.opt.state_dict()))
        sp.bind(opt)
        return Run(self.row, model, sp, opt, model, self.rows, self.device, self.done, self.round)


def begin(
    name: str,
    net: str,
    optimizer: str,
    seed: int = 0,
    method: Method | None = None,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
    rows: slice = slice(None),
    device: torch.device = CPU,
) -> Run:
    """The order of the documentation: sparsify, wrap, optimizer, bind."""
    torch.manual_seed(seed)
    row, model = ROWS[name], prepare_for(name, make_net(net)).to(device)
    how = method or make_method(name)
    epochs = max(row.epochs, EPOCHS // how.traits.rounds)  # of one round; another value of a field may mean fewer rounds
    options = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in row.options.items()}
    sp = autosparse.sparsify(model, how, epochs=epochs, steps_per_epoch=STEPS, **options)
    forward = wrap(model) if wrap else model
    opt = make_optimizer(optimizer, sp.param_groups(weight_decay=1e-3))
    sp.bind(opt)
    return Run(row, model, sp, opt, forward, rows, device)


def resumed(name: str, net: str, optimizer: str, state: dict[str, Any]) -> Run:
    """A run from its saved state; it starts from other weights, so that all must come from there."""
    run = begin(name, net, optimizer, seed=1000)
    run.load(state)
    return run


def active(layer: Layer) -> Tensor:
    """Where a weight counts as active: a mask may hold weights that have just grown and are still 0."""
    part = layer.parametrization
    return part.mask if isinstance(part, Masked) else layer.effective() != 0


def counts(run: Run) -> list[int]:
    return [int(active(layer).sum()) for layer in run.sp.layers]


@dataclass(frozen=True)
class Trajectory:
    """An unbroken run: what was seen at every step, and a state to resume from."""

    run: Run
    losses: list[float]
    moments: list[Moment]
    counts: list[list[int]]
    cut: dict[str, Any]
    held: dict[str, Any]  # sp.state_dict() of the cut, as it was handed out
    after_last: list[int]


def cut_of(name: str, net: str, optimizer: str) -> tuple[int, bool]:
    """Where a run is interrupted: after so many steps, and whether the round that is due there has begun."""
    if ROWS[name].scores and (net, optimizer) == ("conv", "sgd"):
        return 0, False  # scored, not trained yet
    cuts = {("conv", "sgd"): 16, ("conv", "adamw"): 11, ("transformer", "sgd"): 21, ("transformer", "adamw"): 16}
    return cuts[net, optimizer], (net, optimizer) == ("transformer", "adamw")


@functools.cache
def trajectory(name: str, net: str, optimizer: str) -> Trajectory:
    """Shared by the tests of a process, which leave it as it is."""
    run = begin(name, net, optimizer)
    run.score()
    moments: list[Moment] = []
    seen: list[list[int]] = []

    def watch() -> None:
        moments.append(run.moment())
        seen.append(counts(run))

    steps, begun = cut_of(name, net, optimizer)
    losses = run.advance(steps, watch)
    if begun:
        run.begin_round()
    cut, held = run.state(), run.sp.state_dict()
    losses += run.advance(TOTAL, watch)
    return Trajectory(run, losses, moments, seen, cut, held, counts(run))
