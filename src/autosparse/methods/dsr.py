"""DSR: dynamic sparse reparameterization. One adaptive threshold prunes all layers; what goes grows elsewhere at random."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run, require
from autosparse.methods.families.budget import Budgeted, warn_if_never_due
from autosparse.methods.families.drop_grow import apportion, grow, highest
from autosparse.methods.families.fixed_mask import mask_of, random_scores, set_mask
from autosparse.methods.registry import register


@register
class DSR(Budgeted):
    """Prunes by one global threshold and regrows at random where most weights survived.

    Active weights below a global threshold go; the threshold doubles or halves until about prune_fraction goes.
    """

    about = About(
        name="dsr",
        year=2019,
        family="sparse to sparse",
        pruned_gradient="0",
        train_flops="3 f_S, f_S drifts as weights move between layers",
        reference="Mostafa and Wang, Parameter Efficient Training of Deep Convolutional Neural Networks by Dynamic Sparse "
        "Reparameterization, ICML 2019, arXiv 1902.05967",
    )

    dense_first: bool | None = False
    threshold: float = 1e-3
    prune_fraction: float = 0.08
    tolerance: float = 0.1
    update_every: int = 1000
    doublings: tuple[float, ...] = (0.25, 0.5, 0.75)
    update_end: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.threshold > 0, f"threshold = {self.threshold}; it must be above 0: it changes by factors of 2")
        require(0 < self.prune_fraction < 1, f"prune_fraction = {self.prune_fraction}; allowed: 0 < prune_fraction < 1")
        require(0 <= self.tolerance < 1, f"tolerance = {self.tolerance}; allowed: 0 <= tolerance < 1")
        require(self.update_every >= 1, f"update_every = {self.update_every}; it must be at least 1 step")
        require(0 < self.update_end <= 1, f"update_end = {self.update_end}; it is a part of the run: 0 < update_end <= 1")
        require(all(0 < at < 1 for at in self.doublings), f"doublings = {self.doublings}; parts of the run between 0 and 1")

    def check(self, sp: Run) -> None:
        super().check(sp)
        total = sp.total_steps
        if not any(self._is_due_at(step, total) for step in range(self.update_every, total, self.update_every)):
            before_doubling = math.floor(min((self.update_end, *self.doublings)) * total)
            warn_if_never_due(self, "update_every", self.update_every, min(before_doubling, total - 1))

    def start(self, sp: Run) -> None:
        super().start(sp)
        sp.memory["threshold"] = self.threshold

    def due(self, sp: Run) -> bool:
        return self._is_due_at(sp.step, sp.total_steps)

    def _is_due_at(self, step: int, total: int) -> bool:
        progress = step / total
        every = self.update_every * 2 ** sum(progress > at for at in self.doublings)
        return 0 < step < total and step % every == 0 and progress <= self.update_end

    def renew(self, sp: Run) -> None:
        layers = self.sparse_layers(sp)
        before = [mask_of(layer).clone() for layer in layers]
        for layer in layers:
            set_mask(sp, layer, survivors(layer, sp.memory["threshold"]))
        counts = torch.stack([torch.count_nonzero(mask) for mask in [*before, *(mask_of(layer) for layer in layers)]]).tolist()
        active, remaining = counts[: len(layers)], counts[len(layers) :]
        pruned = sum(active) - sum(remaining)
        sp.memory["threshold"] *= self.factor(pruned, sum(active))
        places = [~mask for mask in before]  # not where a weight has just gone
        room = [layer.numel - count for layer, count in zip(layers, active, strict=True)]
        if sum(room) < pruned:
            places, room = (
                [~mask_of(layer) for layer in layers],
                [layer.numel - count for layer, count in zip(layers, remaining, strict=True)],
            )
        for layer, allowed, more in zip(layers, places, apportion(remaining, pruned, room), strict=True):
            set_mask(sp, layer, grow(mask_of(layer), random_scores(layer, sp.generator), more, allowed))

    def factor(self, pruned: int, active: int) -> float:
        """What the threshold is multiplied by, so that the next time nearer to prune_fraction of the weights goes."""
        aim = self.prune_fraction * active
        if pruned > (1 + self.tolerance) * aim:
            return 0.5
        return 2.0 if pruned < (1 - self.tolerance) * aim else 1.0

    def notes(self, sp: Run) -> list[str]:
        return [f"pruning threshold {sp.memory['threshold']:.4g}"] if "threshold" in sp.memory else []


def survivors(layer: Layer, threshold: float) -> Tensor:
    """Active weights of at least this magnitude; the largest one always stays."""
    size, active = layer.weight().abs(), mask_of(layer)
    return active & ~(size < threshold) | highest(size, active, 1)  # what is NaN stays, to be noticed
