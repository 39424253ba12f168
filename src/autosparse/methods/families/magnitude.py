"""The magnitude family: the largest weights are active. Its methods differ in gate, in time, and in how a budget is spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from autosparse import schedules
from autosparse.common.tensors import top_mask
from autosparse.distributions import DISTRIBUTIONS, counts, distribute
from autosparse.layer import Layer
from autosparse.methods.annealing import GradientAnnealing
from autosparse.methods.families.base import Method, dense_like, first_and_last, require
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.parametrizations import Masked

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier

GLOBAL = "global"  # one ranking over all layers


@dataclass(frozen=True, kw_only=True)
class Magnitude(Method):
    """Keeps the weights of largest magnitude, chosen anew every `update_every` optimizer steps (None: five times an epoch).

    Dense ends are left out of the run, save under "er" and "erk", where they count towards the overall budget.
    """

    allocations: ClassVar[tuple[str, ...]] = DISTRIBUTIONS

    sparsity: float = 0.8
    distribution: str = "uniform"
    update_every: int | None = 1
    dense_first: bool = False
    dense_last: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.sparsity < 1, f"sparsity = {self.sparsity}; it is the fraction of zeros: 0 <= sparsity < 1")
        require(
            self.distribution in self.allocations,
            f"distribution = {self.distribution!r}; {self.about.name} allows: {', '.join(self.allocations)}",
        )
        require(
            self.update_every is None or self.update_every >= 1,
            f"update_every = {self.update_every}; it counts steps and must be at least 1 (None: five times an epoch)",
        )

    def check(self, run: Sparsifier) -> None:
        self.finals(run, self.sparsity)

    def keeps_dense(self, names: Sequence[str]) -> Sequence[str]:
        return () if self._inside() else first_and_last(names, self.dense_first, self.dense_last)

    def parametrization(self, layer: Layer, run: Sparsifier) -> Masked:
        return Masked(layer.stored)

    def start(self, run: Sparsifier) -> None:
        self.refresh(run)

    def after_step(self, run: Sparsifier) -> None:
        if self.due(run):
            self.refresh(run)

    def due(self, run: Sparsifier) -> bool:
        """Whether masks change now."""
        return run.step % self.period(run) == 0

    def period(self, run: Sparsifier) -> int:
        """Steps between two updates."""
        return self.update_every or max(1, run.steps_per_epoch // 5)

    def refresh(self, run: Sparsifier) -> None:
        """Choose the masks from the weights as they are."""
        for layer, mask in zip(run.layers, self.largest(run, self.sparsity), strict=True):
            mask_of(layer).copy_(mask)

    def magnitude(self, layer: Layer) -> Tensor:
        """By what weights are ranked."""
        return layer.weight().abs()

    def now(self, final: float, run: Sparsifier) -> float:
        """The present sparsity of what ends at `final`."""
        return final

    def finals(self, run: Sparsifier, sparsity: float) -> dict[str, float]:
        """The sparsity at which every layer ends; under "global" the overall one stands for each."""
        shapes = {layer.name: tuple(layer.shape) for layer in run.layers}
        if self.distribution == GLOBAL:
            return dict.fromkeys(shapes, sparsity)
        dense = first_and_last(list(shapes), self.dense_first, self.dense_last) if self._inside() else ()
        return distribute(self.distribution, shapes, sparsity, dense)

    def active_counts(self, run: Sparsifier, sparsity: float) -> list[int]:
        """Exact numbers of active weights, layer by layer."""
        finals = self.finals(run, sparsity)
        shapes = {layer.name: tuple(layer.shape) for layer in run.layers}
        return list(counts(shapes, {name: self.now(final, run) for name, final in finals.items()}).values())

    def largest(self, run: Sparsifier, sparsity: float) -> list[Tensor]:
        """Masks of the largest weights: of each layer, or of all layers together."""
        if self.distribution == GLOBAL:
            return _largest_of_all([self.magnitude(layer) for layer in run.layers], self.now(sparsity, run))
        wanted = zip(run.layers, self.active_counts(run, sparsity), strict=True)
        return [top_mask(self.magnitude(layer), count) for layer, count in wanted]

    def _inside(self) -> bool:
        return self.distribution in ("er", "erk")


def _largest_of_all(magnitudes: Sequence[Tensor], sparsity: float) -> list[Tensor]:
    """One ranking over all layers; the largest weight of each always stays, so that no layer dies."""
    flat = [each.reshape(-1) for each in magnitudes]
    for each in flat:
        each[each.argmax()] = torch.inf
    ranked = torch.cat(flat)
    count = counts({"all": (ranked.numel(),)}, {"all": sparsity})["all"]
    parts = torch.split(top_mask(ranked, count), [each.numel() for each in magnitudes])
    return [part.reshape(each.shape) for part, each in zip(parts, magnitudes, strict=True)]


@dataclass(frozen=True, kw_only=True)
class DenseGradient(Magnitude):
    """Pruned weights receive their whole gradient, or alpha of it with Gradient Annealing; they return when they grow."""

    ga: GradientAnnealing | None = None

    def check(self, run: Sparsifier) -> None:
        super().check(run)
        if self.ga is not None:
            self.ga.check(run.epochs)

    def annealed(self, run: Sparsifier) -> float:
        return 1.0 if self.ga is None else self.ga.at(run.epoch, run.epochs)

    def gate(self, run: Sparsifier) -> float:
        return run.alpha

    def passes(self, density: Tensor, run: Sparsifier) -> tuple[Tensor, Tensor, Tensor]:
        return density, density, dense_like(density) if run.alpha else density

    def notes(self, run: Sparsifier) -> list[str]:
        return [] if self.ga is None else [f"alpha {run.alpha:.4f}"]


@dataclass(frozen=True, kw_only=True)
class CubicRamp(Magnitude):
    """Sparsity rises as s_f + (s_i - s_f)(1 - p)^3 while p goes from 0 to 1 between two fractions of the run."""

    start_sparsity: float = 0.0
    begin: float = 0.2
    end: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.start_sparsity <= self.sparsity,
            f"start_sparsity = {self.start_sparsity}; allowed: from 0 to the sparsity of {self.sparsity}",
        )
        require(
            0 <= self.begin < self.end <= 1,
            f"begin = {self.begin}, end = {self.end}; they are fractions of the run: 0 <= begin < end <= 1",
        )

    def window(self, run: Sparsifier) -> tuple[int, int]:
        """The steps of the first and of the last rise."""
        return round(self.begin * run.total_steps), round(self.end * run.total_steps)

    def due(self, run: Sparsifier) -> bool:
        first, last = self.window(run)
        return run.step >= first and ((run.step - first) % self.period(run) == 0 or run.step == last)

    def now(self, final: float, run: Sparsifier) -> float:
        first, last = self.window(run)
        if run.step < first:
            return 0.0
        progress = 1.0 if run.step >= last else (run.step - first) / (last - first)
        return schedules.cubic(progress, min(self.start_sparsity, final), final)
