"""What a method is: a frozen, validated config, a parametrization for a weight, and a few hooks in time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.parametrizations import SparseParametrization

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


@dataclass(frozen=True)
class About:
    """A row of the table of methods."""

    name: str
    year: int
    family: str
    budget: str  # "learned" or "budgeted"
    pruned_gradient: str
    train_flops: str
    reference: str
    doc: str


class Stateful(Protocol):
    """Something that changes over a run and can be saved and loaded."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods. Subclasses are frozen dataclasses; what changes lives in the Sparsifier's memory and parts."""

    about: ClassVar[About]
    prune_more: ClassVar[str] = "raise the method's penalty or train longer"  # advice when nothing is pruned
    shardable: ClassVar[bool] = False  # can run under FSDP2, where a parameter is only partly on each rank

    def check(self, run: Sparsifier) -> None:
        """Refuse a run that this method cannot do; called before anything is attached."""

    def parts(self, run: Sparsifier) -> dict[str, Stateful]:
        """State machines for one run, kept in `run.parts` and saved with its state under these names."""
        return {}

    def keeps_dense(self, names: Sequence[str]) -> Sequence[str]:
        """Of the selected layers, those that the method leaves alone by its own convention (first, last)."""
        return ()

    def parametrization(self, layer: Layer, run: Sparsifier) -> SparseParametrization:
        """What the forward pass sees of a weight, and which gradient comes back."""
        raise NotImplementedError

    def start(self, run: Sparsifier) -> None:
        """Initial thresholds or masks, from the weights as they are now; called again after load_dense."""

    def ready(self, run: Sparsifier) -> None:
        """Refuse to train while something is missing, such as the scores; called at the first step."""

    def score(self, run: Sparsifier, batches: Iterable[Any], loss_fn: Callable[..., Tensor] | None) -> None:
        """Look at data before training and choose a mask."""
        raise TypeError(f"{self.about.name} does not look at data before training: there is nothing to score")

    def next_round(self, run: Sparsifier) -> bool:
        """Prune and rewind for the next round; False when all rounds are done."""
        raise TypeError(f"{self.about.name} trains in one round")

    def detach(self, run: Sparsifier) -> None:
        """Before the zeros are baked in: undo what the method put on the model, make soft masks hard."""

    def gate(self, run: Sparsifier) -> float:
        """What pruned weights receive of their gradient at the coming step."""
        return 0.0

    def gate_is_rare(self) -> bool:
        """Whether pruned weights receive gradients at few steps only."""
        return False

    def annealed(self, run: Sparsifier) -> float:
        """alpha of the present epoch, for methods that anneal."""
        return 0.0

    def before_step(self, run: Sparsifier) -> bool:
        """After backward, before the optimizer's step. True: this call took the place of the step."""
        return False

    def after_step(self, run: Sparsifier) -> None:
        """After the optimizer's step; run.step counts it already."""

    def end_epoch(self, run: Sparsifier, loss: float | None) -> None:
        """At the end of epoch run.epoch, before the epoch is counted."""

    def penalty(self, run: Sparsifier) -> Tensor | float:
        """The regulariser that the user adds to the loss."""
        return 0.0

    def passes(self, density: Tensor, run: Sparsifier) -> tuple[Tensor, Tensor, Tensor]:
        """Densities of the forward, input-gradient and weight-gradient passes of the present step, one value a layer."""
        return density, density, density

    def learned_decay(self, weight_decay: float | None) -> float | None:
        """Weight decay of the method's own learned tensors when the user gives none."""
        return weight_decay

    def guarded(self) -> bool:
        """Whether a layer's density is something the guard should watch: budgets keep themselves."""
        return self.about.budget == "learned"

    def needs_decay(self) -> bool:
        """Without decay of its thresholds this method prunes nothing."""
        return False

    def notes(self, run: Sparsifier) -> list[str]:
        """Lines that the report adds for this method."""
        return []

    def fields(self) -> dict[str, Any]:
        """The config as plain values, for checkpoints and reports."""
        return dataclasses.asdict(self)


def first_and_last(names: Sequence[str], first: bool, last: bool) -> list[str]:
    """The layers at the ends of the network that are to stay dense."""
    ends = [names[0]] * first + [names[-1]] * last
    return ends if len(names) > len(ends) else []


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def dense_like(density: Tensor) -> Tensor:
    return torch.ones_like(density)
