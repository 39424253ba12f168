"""RigL: drop the smallest weights, grow where the dense gradient is largest; an update replaces the optimizer's step."""

from __future__ import annotations

from autosparse.methods.families.base import About
from autosparse.methods.families.drop_grow import DropAndGrow, GrowsByGradient
from autosparse.methods.registry import register


@register
class RigL(GrowsByGradient, DropAndGrow):
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

    update_every: int | None = 100
    update_end: float = 0.75
