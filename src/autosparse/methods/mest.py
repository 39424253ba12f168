"""MEST: memory-economic sparse training. Mutates masks by importance and at random; no dense gradient is ever used."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run, require
from autosparse.methods.families.budget import Budgeted, warn_if_never_due
from autosparse.methods.families.drop_grow import drop, grow
from autosparse.methods.families.fixed_mask import mask_of, random_scores, set_mask
from autosparse.methods.registry import register


@register
class MEST(Budgeted):
    """Elastic mutation: prunes by importance, regrows at random, in shrinking amounts.

    EM: prune to S + p, grow to S. EM&S (soft=True): prune to S, grow to S - p. p falls in stages to 0.
    """

    about = About(
        name="mest",
        year=2021,
        family="sparse to sparse",
        pruned_gradient="0",
        train_flops="3 f_S (EM&S: f_S at sparsity S - p until its last stage)",
        reference="Yuan et al., MEST: Accurate and Fast Memory-Economic Sparse Training Framework on the Edge, "
        "NeurIPS 2021, arXiv 2110.14032",
    )

    dense_first: bool | None = True
    soft: bool = False
    mutation: tuple[float, ...] | None = None
    stages: tuple[float, ...] = (0.5625, 0.75)
    update_epochs: int = 5
    gradient_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mutation is None:
            object.__setattr__(self, "mutation", (0.05, 0.025) if self.soft else (0.02, 0.01))
        require(
            len(self._mutation) == len(self.stages),
            f"mutation = {self._mutation} and stages = {self.stages}: give one part of the run for each mutation rate",
        )
        rising = all(low < high for low, high in zip((0.0, *self.stages), self.stages, strict=False))
        require(rising and max(self.stages, default=0) <= 1, f"stages = {self.stages}; parts of the run, rising, in (0, 1]")
        for p in self._mutation:
            require(p >= 0, f"mutation = {self._mutation}; rates must be at least 0")
            reached = self.sparsity - p if self.soft else self.sparsity + p
            require(0 <= reached < 1, f"sparsity {self.sparsity} with a mutation of {p} asks for a sparsity of {reached:.4g}")
        require(self.update_epochs >= 1, f"update_epochs = {self.update_epochs}; it must be at least 1")
        require(self.gradient_weight >= 0, f"gradient_weight = {self.gradient_weight}; it must be at least 0")

    @property
    def _mutation(self) -> tuple[float, ...]:
        assert self.mutation is not None
        return self.mutation

    def check(self, sp: Run) -> None:
        super().check(sp)
        warn_if_never_due(self, "update_epochs", self.update_epochs, math.ceil(max(self.stages, default=0) * sp.epochs) - 1)

    def mutation_at(self, step: int, total: int) -> float:
        """p of the stage that a step lies in; 0 after the last stage."""
        return next((p for p, end in zip(self._mutation, self.stages, strict=True) if step < end * total), 0.0)

    def start_budget(self, sp: Run) -> dict[str, int]:
        return self.budget(sp, self.sparsity - self.mutation_at(0, 1)) if self.soft else self.budget(sp)

    def start(self, sp: Run) -> None:
        super().start(sp)
        self.renew(sp)  # the authors' update at epoch 0: the smallest random weights move elsewhere

    def due(self, sp: Run) -> bool:
        step, total = sp.step, sp.total_steps
        # at a new stage too, so that EM&S arrives at the promised sparsity in a run of any length
        new_stage = self.mutation_at(step, total) != self.mutation_at(step - 1, total)
        return step > 0 and (new_stage or (step < total and step % (self.update_epochs * sp.steps_per_epoch) == 0))

    def at_target(self, sp: Run) -> bool:
        return not self.soft or self.mutation_at(sp.step, sp.total_steps) == 0

    def renew(self, sp: Run) -> None:
        p = self.mutation_at(sp.step, sp.total_steps)
        pruned = self.budget(sp, self.sparsity if self.soft else self.sparsity + p)
        grown = self.budget(sp, self.sparsity - p if self.soft else self.sparsity)
        for layer in sp.layers:
            active = mask_of(layer)
            count = int(torch.count_nonzero(active))
            remaining = min(count, pruned[layer.name])
            # two masks in a row: a pruned weight that comes straight back starts at 0
            set_mask(sp, layer, drop(active, self.importance(layer, sp), count - remaining))
            more = grown[layer.name] - remaining
            set_mask(sp, layer, grow(active, random_scores(layer, sp.generator), more))

    def importance(self, layer: Layer, sp: Run) -> Tensor:
        """|w| + lambda |G|, with the gradient of the last batch; pruned weights have a gradient of 0."""
        size = layer.weight().abs()
        if not self.gradient_weight or sp.step == 0:  # there is no gradient before the first step
            return size
        return size + self.gradient_weight * sp.gradient(layer).abs()
