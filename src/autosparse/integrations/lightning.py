"""Sparse runs in Lightning: one callback; the LightningModule stays as it is.

    sparse = SparseTraining(AutoSparse(target_sparsity=0.9), exclude=("head",))
    Trainer(max_epochs=30, callbacks=[sparse]).fit(module, loader)
    sparse.sparsifier.finalize()  # the module is plain again, with its zeros

Thresholds get an optimizer group beside that of their weights, and no clipping; with manual optimization clip inside
`with sparse.thresholds_aside():`. A method's penalty is added to the gradients: leave it out of the loss. Auto-tuning takes
the epoch's mean of a loss that the module logs: `self.log("train_loss", loss, on_step=False, on_epoch=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
except ImportError as error:
    raise ImportError('the Lightning callback needs lightning: pip install "autosparse[lightning]"') from error

from autosparse.integrations.gradients import Gradients
from autosparse.integrations.lightning_best import compare_at_target, release, warn_if_best_is_before_target
from autosparse.integrations.lightning_run import EpochLoss, check_plan, plan
from autosparse.integrations.loops import warn_if_before_target
from autosparse.integrations.module_hooks import count_macs, follow, unfollow
from autosparse.integrations.regroup import move_thresholds
from autosparse.methods.autotune import AlphaTuner
from autosparse.methods.families.base import Method
from autosparse.sparsifier import Sparsifier, sparsify


class SparseTraining(Callback):
    """A method at work in a Trainer; `options` are those of `autosparse.sparsify`. `sparsifier` is there once `fit` began."""

    sparsifier: Sparsifier

    def __init__(
        self,
        method: Method,
        *,
        loss: str = "train_loss",
        threshold_decay: float | None = None,
        steps_per_epoch: int | None = None,
        finalize: bool = False,
        **options: Any,
    ) -> None:
        self.method, self.loss, self.threshold_decay, self.options = method, EpochLoss(loss), threshold_decay, options
        self.steps_per_epoch, self.finalize = steps_per_epoch, finalize

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            if isinstance(trainer.strategy, FSDPStrategy | DeepSpeedStrategy):
                raise ValueError(f"{type(trainer.strategy).__name__} hides weights from their thresholds: use strategy='ddp'")
            # no callback is called between the module's own setup and the loading of a checkpoint
            follow(pl_module, "configure_model", lambda: self._attach(trainer, pl_module))
            follow(pl_module, "on_load_checkpoint", self._check)
        elif self._attached() and self.sparsifier.model is pl_module:
            follow(pl_module, "on_load_checkpoint", self._restore_parametrized)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        unfollow(pl_module, "configure_model", "on_load_checkpoint", "on_save_checkpoint")
        release(trainer)

    def _attach(self, trainer: Trainer, module: LightningModule) -> None:
        if self._attached() and self.sparsifier.model is module:
            return
        with torch.device("cpu"):  # configure_model runs where new tensors are made on the accelerator
            if self.steps_per_epoch is None:
                trainer.fit_loop.setup_data()
                trainer.fit_loop._combined_loader = None  # set up again after a restore, or it would not get its saved state
            epochs, steps = plan(trainer, self.steps_per_epoch)
            self.sparsifier = sparsify(module, self.method, epochs=epochs, steps_per_epoch=steps, **self.options)
        self._gradients, self._counts_macs = Gradients(self.sparsifier), False

    def _attached(self) -> bool:
        return hasattr(self, "sparsifier") and self.sparsifier.layers[0].attached

    def _check(self, checkpoint: dict[str, Any]) -> None:
        """Before the weights are loaded: keys that do not fit would say less."""
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        if not state:
            raise ValueError("this is no checkpoint of a sparse run: load its weights into the module, fit without ckpt_path")
        self.load_state_dict(state)
        self._restore_parametrized(checkpoint)

    def _restore_parametrized(self, checkpoint: dict[str, Any]) -> None:
        """Put the stored weights and thresholds of this run in the place of the plain weights, which are for everyone else."""
        stored = checkpoint.get("callbacks", {}).get(self.state_key, {}).get("parametrized")
        if stored:  # checkpoints of 0.1 have them in the state already
            keys = self.sparsifier.model.state_dict().keys()
            others = {key: value for key, value in checkpoint["state_dict"].items() if key in keys}
            checkpoint["state_dict"] = {**others, **stored}

    def _save_plain(self, checkpoint: dict[str, Any]) -> None:
        """Let the checkpoint hold plain weights with their zeros, which `load_from_checkpoint` of the module's class reads."""
        state = checkpoint["state_dict"]
        parametrized = {key: value for key, value in state.items() if ".parametrizations." in f".{key}"}
        if self._attached() and parametrized:
            plain = self.sparsifier.dense_state_dict()
            checkpoint["state_dict"] = {key: state.get(key, value) for key, value in plain.items()}
            run = checkpoint.get("callbacks", {}).get(self.state_key)
            if run:
                run["parametrized"] = {key: value for key, value in parametrized.items() if key not in plain}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        unfollow(pl_module, "configure_model", "on_load_checkpoint")
        if any(torch.finfo(threshold.dtype).bits < 32 for threshold in self.sparsifier.thresholds()):
            raise ValueError(f"precision={trainer.precision!r} rounds the thresholds' changes away: use 'bf16-mixed' or '32'")
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        optimizers = move_thresholds(self.sparsifier, trainer.optimizers, schedulers, self.threshold_decay)
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._gradients.hook)  # before bind: methods look at all gradients
        self.sparsifier.bind(*optimizers)
        # the callback's own hook is not called for weights alone
        follow(pl_module, "on_save_checkpoint", self._save_plain)
        compare_at_target(trainer, self.sparsifier)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_plan(trainer, self.sparsifier, pl_module.automatic_optimization)
        if self.sparsifier.epoch < trainer.current_epoch:  # resumed after the last batch of an epoch: its end is not announced
            self._end_epoch(self.loss.take_begun())
        first_step = self.sparsifier.first_step
        if first_step.waits:  # training_step may call the module's parts, never the module
            first_step.watch(
                part for part in pl_module.children() if any(parametrize.is_parametrized(p) for p in part.modules())
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.sparsifier.cost.profile is None and not self.sparsifier.first_step.waits and not self._counts_macs:
            self._counts_macs = True
            count_macs(self.sparsifier, pl_module, "training_step")

    @contextmanager
    def thresholds_aside(self) -> Iterator[None]:
        """Clip gradients in here: those of thresholds are neither counted nor changed."""
        self._gradients.set_aside()
        try:
            yield
        finally:
            self._gradients.put_back()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._gradients.set_aside()  # Lightning clips next; the step's hook puts them back

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.loss.join(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sp = self.sparsifier
        self._end_epoch(self.loss.take(trainer))
        values = {"sparsity": sp.sparsity(), "alpha": sp.alpha}
        if sp.cost.profile is not None:
            values["train_fraction"] = sp.cost.train_fraction
        pl_module.log_dict(values, sync_dist=True, batch_size=1)

    def _end_epoch(self, loss: Tensor | None) -> None:
        tuner = self.sparsifier.parts.get("tuner")
        if loss is None and isinstance(tuner, AlphaTuner) and not tuner.tuned:
            name = self.loss.name
            raise ValueError(
                f"auto-tuning needs the epoch's mean of {name!r}: write self.log({name!r}, loss, on_step=False, on_epoch=True) "
                "in training_step, or name another logged loss with SparseTraining(..., loss=...)"
            )
        self.sparsifier.end_epoch(loss)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        warn_if_before_target(self.sparsifier)
        warn_if_best_is_before_target(trainer)
        if self.finalize:
            self.sparsifier.finalize()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["callbacks"].get(self.state_key)
        if state and state["sparsifier"]["step"] > state["sparsifier"]["epoch_start"]:
            state["begun"] = self.loss.so_far(trainer)
        self._save_plain(checkpoint)

    def state_dict(self) -> dict[str, Any]:
        return {"sparsifier": self.sparsifier.state_dict(), "begun": None} if self._attached() else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._attached():
            self.sparsifier.load_state_dict(state_dict["sparsifier"])
            self.loss.begun = state_dict["begun"]
