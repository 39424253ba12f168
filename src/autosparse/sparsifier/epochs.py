"""What is looked at when an epoch ends: its steps, its loss, and whether anything was pruned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from autosparse.common.ranks import mean_over_ranks
from autosparse.common.warnings import warn

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


def warn_if_uneven(sp: Sparsifier, steps: int) -> None:
    """Refuse an epoch without steps; warn if the first had others than `steps_per_epoch`."""
    if not steps:
        raise RuntimeError("no optimizer step was seen in this epoch: call sp.bind(optimizer) before training")
    if sp.epoch == 0 and steps != sp.steps_per_epoch:
        warn(
            f"the first epoch had {steps} optimizer steps, steps_per_epoch is {sp.steps_per_epoch}: schedules and costs "
            "count optimizer steps (batches divided by gradient accumulation)"
        )


def finite_loss(sp: Sparsifier, loss: float | Tensor) -> float:
    """The mean over ranks, taken first: a loss that is NaN on one rank is an error on all, and none is left waiting."""
    value = mean_over_ranks(float(loss.detach() if isinstance(loss, Tensor) else loss), sp.layers[0].stored.device)
    if not math.isfinite(value):
        raise ValueError(f"the loss of epoch {sp.epoch} is {value}: nothing was changed; look for the step that diverged")
    return value


def warn_if_dense(sp: Sparsifier) -> None:
    sparsity = sp.history[-1]["sparsity"]
    if sp.epoch == 2 and sparsity < 1e-3 and sp.method.about.budget == "learned":
        warn(f"nothing has been pruned yet: {sparsity:.2%} zeros after 2 epochs; {sp.method.traits.prune_more}")
