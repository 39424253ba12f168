"""Small Trainer runs; as a script, one that is killed in the middle of an epoch, or one rank of two."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import autosparse
from autosparse import AutoSparse, AutoTune
from autosparse.integrations.transformers import sparsify_trainer
from autosparse.methods.families.base import Method

BATCH = 4
TUNED = AutoSparse(autotune=AutoTune(epochs=3, reference=(0.7, 0.69, 0.68)), start_sparsity=0.5)


def bert(seed: int = 0) -> BertForSequenceClassification:
    """With dropout, so that random states matter."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=30, max_position_embeddings=12, **sizes))


def sentences(count: int = 24) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(30, (count, 8), generator=generator)
    return [{"input_ids": each, "labels": each[0] % 2} for each in tokens]


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    """Twelve optimizer steps: four epochs of six batches, two a step."""
    chosen = {
        "per_device_train_batch_size": BATCH, "gradient_accumulation_steps": 2, "num_train_epochs": 4, "learning_rate": 1e-2,
        "weight_decay": 0.02, "logging_steps": 5, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
        "use_cpu": True, **options,
    }  # fmt: skip
    return TrainingArguments(output_dir=str(folder), **chosen)


def make(
    folder: Path,
    method: Method,
    model: nn.Module | None = None,
    data: Any = None,
    kind: type[Trainer] = Trainer,
    sparse: dict[str, Any] | None = None,
    callbacks: list[TrainerCallback] | None = None,
    **options: Any,
) -> tuple[Trainer, autosparse.Sparsifier]:
    trainer = kind(
        model=bert() if model is None else model,
        args=arguments(folder, **options),
        train_dataset=sentences() if data is None else data,
        callbacks=callbacks,
    )
    return trainer, sparsify_trainer(trainer, method, **(sparse or {}))


def state(trainer: Trainer, sp: autosparse.Sparsifier) -> dict[str, Any]:
    assert trainer.optimizer is not None
    return {"model": sp.model.state_dict(), "opt": trainer.optimizer.state_dict(), "sp": sp.state_dict()}


class Killed(TrainerCallback):
    """Ends its own process after the given step, without a goodbye."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def be_killed(folder: Path) -> None:
    trainer, _ = make(folder, TUNED, save_strategy="steps", save_steps=4, callbacks=[Killed(6)])
    trainer.train()


def be_a_rank(folder: Path) -> None:
    """Four epochs of three steps, of two batches on each of two ranks; then the same from the checkpoint of step 4."""
    whole = make(folder, TUNED, data=sentences(48), save_strategy="steps", save_steps=4, logging_steps=3)
    whole[0].train()
    resumed = make(folder, TUNED, data=sentences(48), model=bert(seed=5))
    resumed[0].train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    found = {"whole": state(*whole), "resumed": state(*resumed), "losses": [entry["loss"] for entry in whole[1].history]}
    torch.save(found, folder / f"rank{whole[0].args.process_index}.pt")
    if dist.is_initialized():
        dist.barrier()  # a process that leaves early can abort the others
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"killed": be_killed, "rank": be_a_rank}[sys.argv[1]](Path(sys.argv[2]))
