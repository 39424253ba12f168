"""The magnitude family: the largest weights are active. Its methods differ in gate, in time, and in how a budget is spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from autosparse import schedules
from autosparse.common.tensors import top_mask
from autosparse.functional import shared_norm
from autosparse.layer import Layer
from autosparse.methods.annealing import GradientAnnealing
from autosparse.methods.families.base import Method, Run, require, require_rows
from autosparse.methods.families.budget import GLOBAL, Budgeted, count_of_all, require_start, top_of_all, warn_if_never_due
from autosparse.methods.families.fixed_mask import mask_of


@dataclass(frozen=True, kw_only=True)
class Periodic(Method):
    """Masks are chosen from the weights at the start and every `update_every` optimizer steps (None: five times per epoch)."""

    update_every: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.update_every is None or self.update_every >= 1,
            f"update_every = {self.update_every}; it counts steps and must be at least 1 (None: five times per epoch)",
        )

    def period(self, sp: Run) -> int:
        """Steps between two updates."""
        return self.update_every or max(1, sp.steps_per_epoch // 5)

    def due(self, sp: Run) -> bool:
        return sp.step % self.period(sp) == 0

    def start(self, sp: Run) -> None:
        self.renew(sp)

    def renew(self, sp: Run) -> None:
        """Choose the masks from the weights as they are."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Magnitude(Periodic, Budgeted):
    """Keeps the weights of largest magnitude, of each layer or of all layers together.

    With rows_per_pattern above 1 that many consecutive output channels share their zeros, by the norm over them.
    """

    stores_zeros: ClassVar[bool] = False

    sparsity: float = 0.8
    dense_first: bool = False
    rows_per_pattern: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rows(self.rows_per_pattern)

    def renew(self, sp: Run) -> None:
        for layer, mask in zip(sp.layers, self.largest(sp), strict=True):
            mask_of(layer).copy_(mask)

    def magnitude(self, layer: Layer) -> Tensor:
        """By what weights are ranked."""
        weight, rows = layer.weight(), self.rows_per_pattern
        return weight.abs() if rows == 1 else shared_norm(weight, rows, layer.channel_dim)

    def largest(self, sp: Run) -> list[Tensor]:
        """Masks of the largest weights; under "global" one of each layer stays at least, so that no layer dies."""
        masks = self._largest(sp)
        if self.rows_per_pattern == 1:
            return masks
        # channels that share their zeros are tied: a pair that the count would split stays whole
        whole = zip(sp.layers, masks, strict=True)
        return [shared_norm(mask.float(), self.rows_per_pattern, layer.channel_dim) > 0 for layer, mask in whole]

    def _largest(self, sp: Run) -> list[Tensor]:
        if self.distribution == GLOBAL:
            magnitudes = [self.magnitude(layer) for layer in sp.layers]
            return top_of_all(magnitudes, count_of_all(magnitudes, self.now(self.sparsity, sp)), keep_one=True)
        budget = self.budget(sp)
        return [top_mask(self.magnitude(layer), budget[layer.name]) for layer in sp.layers]


@dataclass(frozen=True, kw_only=True)
class DenseGradient(Method):
    """Pruned weights receive their whole gradient, or alpha of it with Gradient Annealing; they return when they grow."""

    ga: GradientAnnealing | None = None

    def check(self, sp: Run) -> None:
        super().check(sp)
        if self.ga is not None:
            self.ga.check(sp.epochs)

    def annealed(self, sp: Run) -> float:
        return 1.0 if self.ga is None else self.ga.at(sp.epoch, sp.epochs)

    def gate(self, sp: Run) -> float:
        return sp.alpha

    def notes(self, sp: Run) -> list[str]:
        return [] if self.ga is None else [f"alpha {sp.alpha:.4f}"]


@dataclass(frozen=True, kw_only=True)
class CubicRamp(Periodic, Budgeted):
    """Sparsity rises as s_f + (s_i - s_f)(1 - p)^3 while p goes from 0 to 1 between two fractions of the run."""

    sparsity: float = 0.8
    dense_first: bool = False
    start_sparsity: float = 0.0
    begin: float = 0.2
    end: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_start(self.start_sparsity, self.sparsity)
        require(
            0 <= self.begin < self.end <= 1,
            f"begin = {self.begin}, end = {self.end}; they are fractions of the run: 0 <= begin < end <= 1",
        )

    def check(self, sp: Run) -> None:
        super().check(sp)
        first, last = self.window(sp)
        warn_if_never_due(self, "update_every", self.period(sp), last - first - 1)

    def window(self, sp: Run) -> tuple[int, int]:
        """The steps of the first and of the last rise."""
        return round(self.begin * sp.total_steps), round(self.end * sp.total_steps)

    def due(self, sp: Run) -> bool:
        first, last = self.window(sp)
        return sp.step >= first and ((sp.step - first) % self.period(sp) == 0 or sp.step == last)

    def now(self, final: float, sp: Run) -> float:
        first, last = self.window(sp)
        if sp.step < first:
            return 0.0
        progress = 1.0 if sp.step >= last else (sp.step - first) / (last - first)
        return schedules.cubic(progress, min(self.start_sparsity, final), final)
