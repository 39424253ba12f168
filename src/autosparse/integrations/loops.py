"""What the adapters share: how long a framework's run is, whether it fits the Sparsifier, and whose gradients it may clip."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

from autosparse.common.warnings import warn
from autosparse.sparsifier import Sparsifier


def divide(
    batches: int | None, accumulation: int, epochs: float, max_steps: int = -1, parts: int | None = None
) -> tuple[int, int]:
    """The Sparsifier's epochs and their optimizer steps: parts of equal length, by default the run's own epochs.

    `batches` make an epoch (None: the data has no length), `accumulation` of them a step; `max_steps` above 0 ends the run.
    """
    if parts is not None and parts < 1:
        raise ValueError(f"epochs = {parts}; it must be a whole number of at least 1")
    if batches is None and parts is None:
        raise ValueError("the data has no length: say into how many epochs the run is divided, epochs=...")
    if batches is None and max_steps < 1:
        raise ValueError("the data has no length: set max_steps, so that the end of the run is known")
    length = max_steps if batches is None else max(1, math.ceil(batches / accumulation))
    total = max_steps if max_steps > 0 else math.ceil(epochs * length)
    steps = math.ceil(total / (parts or math.ceil(total / length)))
    return math.ceil(total / steps), steps


def without(parameters: Iterable[Tensor], thresholds: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that are not thresholds: gradient clipping is for these."""
    apart = {id(threshold) for threshold in thresholds}
    return [parameter for parameter in parameters if id(parameter) not in apart]


def check_start(sp: Sparsifier, epochs: int, steps_per_epoch: int, first_step: int) -> None:
    """Refuse a run that is not the one for which the model was sparsified."""
    if (epochs, steps_per_epoch) != (sp.epochs, sp.steps_per_epoch):
        raise ValueError(
            f"the run has {epochs} epochs of {steps_per_epoch} optimizer steps, but was sparsified for {sp.epochs} of "
            f"{sp.steps_per_epoch}: settle data, epochs, batch size and gradient accumulation before sparsifying"
        )
    if (first_step == 0) != (sp.step == 0):
        raise RuntimeError(
            f"the run begins at step {first_step}, the Sparsifier stands at step {sp.step}: "
            "a new run needs a new model, a resumed one its checkpoint"
        )


def warn_if_before_target(sp: Sparsifier) -> None:
    """Say that training was stopped while zeros were still being added."""
    if sp.step < sp.total_steps and not sp.at_target:
        warn(
            f"training stopped at step {sp.step} of {sp.total_steps} with {sp.sparsity():.1%} zeros, before its target: "
            "train to the end, or stop only when sp.at_target is true"
        )
