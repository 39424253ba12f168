"""Small runs in Lightning and in the Hugging Face Trainer, each with a checkpoint on the way."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, SequentialSampler

from autosparse import AutoSparse

from .plain_loops import BATCH, STEPS, batch, make_net

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule
    from transformers import Trainer

EPOCHS = 4
METHOD = AutoSparse(alpha=0.75, start_sparsity=0.2, target_sparsity=0.6)
EXPECTED = "expected.safetensors"
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")


def samples() -> list[dict[str, Tensor]]:
    """One epoch of the plain loops, sample by sample."""
    batches = [batch(number) for number in range(STEPS)]
    return [{"x": x, "labels": y} for images, labels in batches for x, y in zip(images, labels, strict=True)]


def plain_weights(sp: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in sp.dense_state_dict().items()}


# ---------------------------------------------------------------------------------------------------------- Lightning


def fit_lightning(save_to: Path | None = None, resume_from: Path | None = None) -> dict[str, Tensor]:
    """The plain weights at the end; `save_to` keeps a checkpoint of the second epoch."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import Checkpoint

    from autosparse.integrations.lightning import SparseTraining

    class Keep(Checkpoint):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if save_to is not None and trainer.current_epoch == 1:
                trainer.save_checkpoint(save_to)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    sparse = SparseTraining(METHOD)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(max_epochs=EPOCHS, accelerator="cpu", callbacks=[sparse, Keep()], **quiet)
    loader = DataLoader(samples(), batch_size=BATCH)
    trainer.fit(_lightning_module(), loader, ckpt_path=None if resume_from is None else str(resume_from))
    return plain_weights(sparse.sparsifier)


def _lightning_module() -> LightningModule:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def training_step(self, given: dict[str, Tensor], index: int) -> Tensor:
            loss = cross_entropy(self.net(given["x"]), given["labels"])
            self.log("train_loss", loss, on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)

    return Module()


def save_lightning_checkpoint(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    save_file(fit_lightning(save_to=folder / "second-epoch.ckpt"), folder / EXPECTED)


# ----------------------------------------------------------------------------------------------- Hugging Face Trainer


class WithLoss(nn.Module):
    """A model as the Trainer calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def fit_trainer(folder: Path, resume_from: Path | None = None) -> dict[str, Tensor]:
    """The plain weights at the end; checkpoints of every sixth step are left in the folder."""
    from transformers import TrainingArguments

    from autosparse.integrations.transformers import sparsify_trainer

    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, learning_rate=1e-2,
        weight_decay=0.02, save_strategy="steps", save_steps=6, report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = _ordered_trainer()(model=WithLoss(), args=arguments, train_dataset=samples())
    sp = sparsify_trainer(trainer, METHOD)
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    return plain_weights(sp)


def _ordered_trainer() -> type[Trainer]:
    """Samples come in their order, whatever the random numbers."""
    from transformers import Trainer

    class Ordered(Trainer):
        def _get_train_sampler(self, *_: Any) -> Iterator[int]:
            return SequentialSampler(self.train_dataset)

    return Ordered


def save_trainer_checkpoint(folder: Path) -> None:
    """The checkpoint without random states, which the run does not use, and without the arguments, which name its folder."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as work:
        save_file(fit_trainer(Path(work)), folder / EXPECTED)
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "autosparse.pt"):
            shutil.copy(Path(work, "checkpoint-6", name), folder / name)
