"""RigL: drop the smallest weights, grow where the dense gradient is largest; an update replaces the optimizer's step."""

from __future__ import annotations

from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run
from autosparse.methods.families.drop_grow import DropAndGrow
from autosparse.methods.registry import register


@register
class RigL(DropAndGrow):
    """Replaces the smallest weights by those with the largest gradient, every few steps.

    Every update_every steps: drop by |w|, grow by |G|; pruned weights receive gradients at these steps alone.
    """

    about = About(
        name="rigl",
        year=2020,
        family="sparse to sparse",
        pruned_gradient="G at update steps (to choose what grows), 0 between",
        train_flops="(3 f_S dT + 2 f_S + f_D) / (dT + 1)",
        reference="Evci et al., Rigging the Lottery: Making All Tickets Winners, ICML 2020, arXiv 1911.11134",
    )

    when = "before"

    update_every: int | None = 100
    update_end: float = 0.75

    def gate(self, sp: Run) -> float:
        return 1.0 if self.due(sp) else 0.0

    def grow_scores(self, layer: Layer, sp: Run) -> Tensor:
        return sp.gradient(layer).abs()
