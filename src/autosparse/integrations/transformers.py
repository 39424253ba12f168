"""Sparse runs in the Hugging Face Trainer: one call between making a Trainer and `train`.

    trainer = Trainer(model=model, args=args, train_dataset=data)
    sp = sparsify_trainer(trainer, AutoSparse(target_sparsity=0.9), exclude=("classifier",))
    trainer.train()
    trainer.save_model("sparse")  # a plain model with its zeros: AutoModel.from_pretrained("sparse") reads it

Thresholds get an optimizer group with their decay and are not clipped; the Trainer's own mean loss of an epoch goes to
auto-tuning; its logs show sparsity, alpha and Train F. Checkpoints are plain models too; an exact resume needs `autosparse.pt`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autosparse.common.files import whole_file
from autosparse.common.tensors import load_plain
from autosparse.common.warnings import warn
from autosparse.integrations.gradients import add_penalty
from autosparse.integrations.loops import check_start, divide, warn_if_before_target, without
from autosparse.methods.autosparse import LearnedThreshold
from autosparse.methods.families.base import Method, plain_fields
from autosparse.sparsifier import Sparsifier, sparsify
from autosparse.sparsifier.optimizers import find_groups, unwrap

try:
    import accelerate  # type: ignore[import-untyped]  # noqa: F401 - its absence shows only when a Trainer is made
    from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer, TrainerCallback
    from transformers.trainer_utils import has_length
except ImportError as error:
    raise ImportError('the Trainer adapter needs transformers: pip install "autosparse[transformers]"') from error

STATE_FILE = "autosparse.pt"


def sparsify_trainer(
    trainer: Trainer, method: Method, *, epochs: int | None = None, threshold_decay: float | None = None, **options: Any
) -> Sparsifier:
    """Attach a method to a Trainer and its model, in place; `options` are those of `autosparse.sparsify`.

    `epochs` divides a run of few epochs into more parts, over which alpha decays; the default is the Trainer's own epochs.
    Where the method does not say at which sparsity it starts, a model from `from_pretrained` starts at 0: nothing it has
    learned is lost at once."""
    refusals = {
        "model_init makes another model when training begins: pass model=... instead": trainer.model_init is not None,
        "its optimizer was made before the thresholds and lacks them: leave optimizers=... out, or set trainer.optimizer "
        "from sp.param_groups(...) after this call": trainer.optimizer is not None,
        "auto_find_batch_size may change the steps of an epoch: set it to False": trainer.args.auto_find_batch_size,
        "FSDP and DeepSpeed are not supported here: use DDP": trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled,
    }
    for reason in (reason for reason, applies in refusals.items() if applies):
        raise ValueError(f"this Trainer cannot train sparsely: {reason}")
    assert trainer.model is not None
    parts, steps = _plan(trainer.get_train_dataloader(), trainer.args, epochs)
    start_is_open = isinstance(method, LearnedThreshold) and method.start_sparsity is None and method.s_init is None
    if isinstance(method, LearnedThreshold) and start_is_open and _is_pretrained(trainer.model):
        method = replace(method, start_sparsity=0.0)
    sp = sparsify(trainer.model, method, epochs=parts, steps_per_epoch=steps, **options)
    trainer.__class__ = type(f"Sparse{type(trainer).__name__}", (_SparseTrainer, type(trainer)), {})
    assert isinstance(trainer, _SparseTrainer)
    trainer.sparsifier, trainer.threshold_decay, trainer.loss_sum = sp, threshold_decay, torch.zeros(())
    trainer.start_is_open = start_is_open
    trainer.add_callback(_SparseCallback(trainer, epochs))
    trainer.accelerator.clip_grad_norm_ = partial(_clip_weights, trainer.accelerator.clip_grad_norm_, sp)
    return sp


def _is_pretrained(model: Any) -> bool:
    """Whether the model comes from `from_pretrained`, which notes where."""
    return isinstance(model, PreTrainedModel) and bool(model.name_or_path)


def _clip_weights(clip: Any, sp: Sparsifier, parameters: Any, *args: Any, **kwargs: Any) -> Any:
    return clip(without(parameters, sp.thresholds()), *args, **kwargs)


def _plan(loader: Any, args: Any, epochs: int | None) -> tuple[int, int]:
    batches = len(loader) if has_length(loader) else None
    return divide(batches, args.gradient_accumulation_steps, args.num_train_epochs, args.max_steps, epochs)


class _SparseTrainer(Trainer):
    """What a sparse run changes in a Trainer; mixed into the user's own class."""

    sparsifier: Sparsifier
    threshold_decay: float | None
    loss_sum: Tensor  # since the last end of an epoch
    start_is_open: bool  # the method has not said where its thresholds start

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(*args, **kwargs)
        inner, thresholds = unwrap(optimizer), self.sparsifier.thresholds()
        if any(without(group["params"], thresholds) for group in find_groups([inner], thresholds)):
            groups = self.sparsifier.param_groups(inner.param_groups, self.args.weight_decay, self.threshold_decay)
            inner.param_groups.clear()
            for group in groups:
                inner.add_param_group(group)
        return optimizer

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        self.loss_sum = self.loss_sum + loss.float()
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs or "train_loss" in logs:
            logs.update(sparsity=self.sparsifier.sparsity(), alpha=self.sparsifier.alpha)
            if self.sparsifier.cost.profile is not None:
                logs["train_fraction"] = self.sparsifier.cost.train_fraction
        super().log(logs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir is not None:  # a checkpoint; every rank has losses of its own
            losses = self.accelerator.gather(self.loss_sum.reshape(1).to(self.args.device))
            if self.args.should_save:
                state = {"sparsifier": self.sparsifier.state_dict(), "model": self.sparsifier.model.state_dict()}
                with whole_file(Path(output_dir, STATE_FILE)) as unfinished:
                    torch.save({**state, "losses": losses}, unfinished)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        plain = self.sparsifier.dense_state_dict()
        if not isinstance(self.model, PreTrainedModel):  # only save_pretrained knows what to do with tied tensors
            plain = {key: value.clone() for key, value in plain.items()}
        super()._save(output_dir, plain)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        file = Path(resume_from_checkpoint, STATE_FILE)
        if not file.is_file():
            raise ValueError(
                f"{resume_from_checkpoint} has no {STATE_FILE}: it is no checkpoint of a sparse run. To start from its weights "
                "load them into the model, then call sparsify_trainer, and train without resume_from_checkpoint"
            )
        state = load_plain(file)
        if self.start_is_open:  # decided by where the model came from; after the first step it no longer matters
            state["sparsifier"]["fields"]["start_sparsity"] = plain_fields(self.sparsifier.method).get("start_sparsity")
        self.sparsifier.load_state_dict(state["sparsifier"])
        self.sparsifier.model.load_state_dict(state["model"])
        losses = state["losses"]
        self.loss_sum = losses[self.args.process_index] if len(losses) == self.args.world_size else losses.mean()

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Before the target a model is denser, so better: the best one is chosen among those at the target."""
        return self.sparsifier.at_target and super()._determine_best_metric(metrics, trial)

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))


class _SparseCallback(TrainerCallback):
    """When things happen in a sparse run."""

    def __init__(self, trainer: _SparseTrainer, epochs: int | None) -> None:
        self.trainer, self.sp, self.epochs = trainer, trainer.sparsifier, epochs

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        check_start(self.sp, *_plan(kwargs["train_dataloader"], args, self.epochs), state.global_step)
        self.sp.bind(kwargs["optimizer"])
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback):
                vars(callback)["check_metric_value"] = partial(
                    self._check_at_target, type(callback).check_metric_value, callback
                )

    def _check_at_target(self, check: Any, *args: Any) -> None:
        """Patience counts from the target on: the metric may worsen while zeros are added."""
        if self.sp.at_target:
            check(*args)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        warn_if_before_target(self.sp)
        if args.load_best_model_at_end and state.best_model_checkpoint is None:
            warn("no evaluated model had the run's final sparsity, so load_best_model_at_end loaded none: the last one stays")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        add_penalty(self.sp, self.sp.model.parameters())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Not on_epoch_end: the checkpoint of an epoch's last step is written before that.
        if state.global_step % self.sp.steps_per_epoch == 0 or state.global_step >= state.max_steps:
            self.sp.end_epoch(loss=self.trainer.loss_sum / ((state.global_step - 1) % self.sp.steps_per_epoch + 1))
            self.trainer.loss_sum = torch.zeros(())
