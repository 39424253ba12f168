"""What a Lightning Trainer says of its run: the number of epochs and optimizer steps, and the epoch's mean loss."""

from __future__ import annotations

import math
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import Tensor

from autosparse.integrations.loops import check_start
from autosparse.sparsifier import Sparsifier


def plan(trainer: Trainer, steps: int | None) -> tuple[int, int]:
    """Epochs, and the optimizer steps in each; `steps` where they are known already."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    schedulers = [callback for callback in callbacks if isinstance(callback, GradientAccumulationScheduler)]
    factors = {factor for scheduler in schedulers for factor in scheduler.scheduling.values()} or {
        trainer.accumulate_grad_batches
    }
    if len(factors) > 1:
        raise ValueError("accumulate_grad_batches changes during the run, so epochs differ in optimizer steps: keep it fixed")
    if steps is None:
        if math.isinf(trainer.num_training_batches):
            raise ValueError("the training data has no length: pass SparseTraining(..., steps_per_epoch=...)")
        steps = max(1, math.ceil(trainer.num_training_batches / factors.pop()))
    limits = [trainer.max_epochs] if trainer.max_epochs is not None and trainer.max_epochs > 0 else []
    limits += [math.ceil(trainer.max_steps / steps)] if trainer.max_steps > 0 else []
    if not limits:
        raise ValueError("alpha and targets need the length of the run: pass Trainer(max_epochs=...) or max_steps=...")
    return min(limits), steps


def check_plan(trainer: Trainer, sp: Sparsifier, automatic: bool) -> None:
    """Refuse a run whose length, steps or beginning are not those of the Sparsifier."""
    batches = trainer.num_training_batches
    epochs, steps = plan(trainer, None if automatic and not math.isinf(batches) else sp.steps_per_epoch)
    check_start(sp, epochs, steps, trainer.global_step)


class EpochLoss:
    """The mean over an epoch of a loss that the module logs, also where a checkpoint divides the epoch."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun: list[Tensor] | None = None  # sum and count before the checkpoint

    def take(self, trainer: Trainer) -> Tensor | None:
        """The mean at the end of an epoch; None if the loss was logged for single steps only, or not at all."""
        metrics = trainer.callback_metrics
        old = metrics.pop(self.name, None)
        loss: Tensor | None = trainer.callback_metrics.get(self.name)  # Lightning gives it again if it is of this epoch
        if loss is None and old is not None:
            metrics[self.name] = old
        return self.take_begun() if loss is None else loss

    def take_begun(self) -> Tensor | None:
        """The mean of an epoch of which nothing was left to do after the checkpoint."""
        begun, self.begun = self.begun, None
        return None if begun is None else begun[0] / begun[1]

    def join(self, trainer: Trainer) -> None:
        """Add what was before the checkpoint to Lightning's own mean, once that exists."""
        mean = self._running(trainer) if self.begun else None
        if mean is not None and self.begun:
            mean.value = mean.value + self.begun[0].to(mean.value.device)
            mean.cumulated_batch_size = mean.cumulated_batch_size + self.begun[1].to(mean.value.device)
            self.begun = None

    def so_far(self, trainer: Trainer) -> list[Tensor] | None:
        """What Lightning leaves out of its checkpoints."""
        mean = self._running(trainer)
        return self.begun if mean is None else [mean.value.clone(), mean.cumulated_batch_size.clone()]

    def _running(self, trainer: Trainer) -> Any:
        mean: Any = trainer.fit_loop.epoch_loop._results.get(f"training_step.{self.name}")
        if mean is None or not mean.meta.on_epoch or not mean.meta.is_mean_reduction:
            return None
        return mean if mean.cumulated_batch_size > 0 else None
