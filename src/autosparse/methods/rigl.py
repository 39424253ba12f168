"""RigL: drop the smallest weights, grow where the dense gradient is largest; an update replaces the optimizer's step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, dense_like
from autosparse.methods.families.drop_grow import Replacement
from autosparse.methods.families.fixed_mask import FixedMask

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


@dataclass(frozen=True, kw_only=True)
class RigL(Replacement):
    """Every update_every steps: drop by |w|, grow by |G|; pruned weights receive gradients at these steps alone."""

    about: ClassVar[About] = About(
        name="rigl",
        year=2020,
        family="fixed budget, sparse to sparse",
        budget="budgeted",
        pruned_gradient="G at update steps (to choose what grows), 0 between",
        train_flops="(3 f_S dT + 2 f_S + f_D) / (dT + 1)",
        reference="Evci et al., Rigging the Lottery: Making All Tickets Winners, ICML 2020, arXiv 1911.11134",
        doc="Replaces the smallest weights by those with the largest gradient, every few steps.",
    )

    update_every: int | None = 100
    update_end: float = 0.75

    def gate(self, run: Sparsifier) -> float:
        return 1.0 if self.due(run) else 0.0

    def grow_scores(self, layer: Layer, run: Sparsifier) -> Tensor:
        return run.gradient(layer).abs()

    def before_step(self, run: Sparsifier) -> bool:
        update = self.due(run)
        if update:
            self.rewire(run)
        return update

    def after_step(self, run: Sparsifier) -> None:
        FixedMask.after_step(self, run)  # run.step counts the step already: rewiring belongs to before_step

    def passes(self, density: Tensor, run: Sparsifier) -> tuple[Tensor, Tensor, Tensor]:
        return density, density, dense_like(density) if self.due(run) else density
