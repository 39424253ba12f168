"""One drop-and-grow for RigL, GraNet, SET and SNFS, and its parts for DSR and MEST: exact counts from scores, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autosparse.common.tensors import top_mask
from autosparse.layer import Layer
from autosparse.methods.families.base import Run, require
from autosparse.methods.families.budget import Budgeted, warn_if_never_due
from autosparse.methods.families.fixed_mask import mask_of, random_scores, set_mask
from autosparse.schedules import cosine_fraction


def highest(scores: Tensor, among: Tensor, count: int, nan: float = -math.inf) -> Tensor:
    """Exactly `count` of the weights in the set `among`, those with the largest scores; ties go to the lower index."""
    values = torch.masked_select(scores, among).nan_to_num(nan, math.inf, -math.inf)
    return torch.zeros_like(among).masked_scatter_(among, top_mask(values, count))


def drop(active: Tensor, scores: Tensor, count: int) -> Tensor:
    """The active weights without the `count` lowest-scored ones; among ties the highest index goes first.

    A weight that is NaN stays: dropped, it would become 0 before the end of the epoch, where it is noticed.
    """
    return highest(scores, active, int(torch.count_nonzero(active)) - count, nan=math.inf)


def grow(active: Tensor, scores: Tensor, count: int, allowed: Tensor | None = None) -> Tensor:
    """The active weights and `count` more: the highest-scored inactive ones, inside `allowed` if that is given."""
    inactive = ~active if allowed is None else allowed & ~active
    return active | highest(scores, inactive, count)


def replace(active: Tensor, drop_scores: Tensor, grow_scores: Tensor, count: int) -> Tensor:
    """Drop `count` weights, then grow as many among all that were not kept: a dropped weight may come straight back."""
    return grow(drop(active, drop_scores, count), grow_scores, count)


def apportion(shares: Sequence[float], total: int, capacity: Sequence[int]) -> list[int]:
    """Whole numbers that sum to `total`, in proportion to `shares` and none above its capacity.

    What a full place cannot take goes to the others by their shares; fractions go to the largest remainder.
    """
    if total > sum(capacity):
        raise ValueError(f"{total} weights are to grow, but only {sum(capacity)} places are free")
    exact = [0.0] * len(shares)
    left, places = float(total), [place for place, room in enumerate(capacity) if room > 0]
    while places:
        # places without a share fill up last, and then by their room
        weights: Sequence[float] = shares if any(shares[place] > 0 for place in places) else capacity
        together = sum(weights[place] for place in places)
        parts = {place: weights[place] / together * left for place in places}
        full = [place for place in places if parts[place] >= capacity[place]]
        for place in full or places:
            exact[place] = float(capacity[place]) if full else parts[place]
        left -= sum(capacity[place] for place in full)
        places = [place for place in places if place not in full] if full else []
    whole = [math.floor(value + 1e-9) for value in exact]
    order = sorted(range(len(exact)), key=lambda place: (whole[place] - exact[place], place))
    for place in order + order:
        if sum(whole) < total and whole[place] < capacity[place]:
            whole[place] += 1
    return whole


@dataclass(frozen=True, kw_only=True)
class DropAndGrow(Budgeted):
    """Every `update_every` steps (None: every epoch) a fraction of each layer's active weights is replaced."""

    final_drop_fraction = 0.0  # methods that offer it make it a field

    update_every: int | None = None
    drop_fraction: float = 0.3
    update_end: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        every = self.update_every
        require(every is None or every >= 1, f"update_every = {every}; it must be at least 1 step, or None for an epoch")
        require(0 < self.drop_fraction < 1, f"drop_fraction = {self.drop_fraction}; allowed: 0 < drop_fraction < 1")
        require(0 < self.update_end <= 1, f"update_end = {self.update_end}; it is a part of the run: 0 < update_end <= 1")
        require(
            0 <= self.final_drop_fraction <= self.drop_fraction,
            f"final_drop_fraction = {self.final_drop_fraction}; allowed: 0 to drop_fraction = {self.drop_fraction}",
        )

    def check(self, sp: Run) -> None:
        super().check(sp)
        every, end = self.update_every or sp.steps_per_epoch, self.last_update(sp)
        if every > end or every >= sp.total_steps:
            warn_if_never_due(self, "update_every", every, math.ceil(end) - 1)  # at T_end itself RigL replaces nothing

    def due(self, sp: Run) -> bool:
        every = self.update_every or sp.steps_per_epoch
        return 0 < sp.step < sp.total_steps and sp.step % every == 0 and sp.step <= self.last_update(sp)

    def last_update(self, sp: Run) -> float:
        """T_end: the step after which the masks are fixed."""
        return self.update_end * sp.total_steps

    def fraction(self, sp: Run) -> float:
        """The part of the active weights to replace now: f(t) = f1 + (f0 - f1)/2 (1 + cos(pi t / T_end))."""
        low = self.final_drop_fraction
        return low + cosine_fraction(sp.step / self.last_update(sp), self.drop_fraction - low)

    def drop_scores(self, layer: Layer, sp: Run) -> Tensor:
        return layer.weight().abs()

    def grow_scores(self, layer: Layer, sp: Run) -> Tensor:
        return random_scores(layer, sp.generator)

    def renew(self, sp: Run) -> None:
        for layer in sp.layers:
            self.exchange(sp, layer, mask_of(layer))

    def exchange(self, sp: Run, layer: Layer, active: Tensor) -> None:
        """Replace the fraction that is due among these active weights of a layer."""
        count = int(self.fraction(sp) * int(torch.count_nonzero(active)))
        set_mask(sp, layer, replace(active, self.drop_scores(layer, sp), self.grow_scores(layer, sp), count))


@dataclass(frozen=True, kw_only=True)
class GrowsByGradient(Budgeted):
    """For a DropAndGrow: weights grow where the gradient is largest; pruned ones receive it at updates alone."""

    when = "before"

    def gate(self, sp: Run) -> float:
        return 1.0 if self.due(sp) else 0.0

    def grow_scores(self, layer: Layer, sp: Run) -> Tensor:
        return sp.gradient(layer).abs()
