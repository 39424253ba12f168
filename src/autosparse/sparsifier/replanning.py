"""The kernels' plan follows the run: layers are planned again as their densities fall, and when alpha comes to 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autosparse.sparsifier.sparsifier import Sparsifier

PLANS, PLAN_STEPS = 80, 100  # plans of a run besides those at the ends of epochs, and the most steps between two of them


def is_open(sp: Sparsifier) -> bool:
    """Whether pruned weights receive gradients at the coming step."""
    return sp._gates is not None and sp._gates[0] > 0


def plan_again(sp: Sparsifier, was_open: bool) -> None:
    """After a step, if it was the first, a whole interval has passed, or the gate has closed. Measured times are kept."""
    first = sp._compute.first_plan_is_due
    crossed = was_open != is_open(sp) and not sp.method.traits.gate_is_rare
    every = min(PLAN_STEPS, max(1, round(sp.total_steps / PLANS)))
    if not (first or crossed or sp.step % every == 0) or not sp._compute.may_gain(sp.layers):
        return
    if sp._plan(sp.densities) or first:
        sp._clock.restart()  # from here on layers compute in another way
