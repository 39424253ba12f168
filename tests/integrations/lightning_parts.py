"""Small modules and Trainers that test_lightning.py and its two-process worker share."""

from __future__ import annotations

import logging
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from autosparse.integrations.lightning import SparseTraining

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
BATCHES, EPOCHS = 6, 4


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    return TensorDataset(torch.randn(48, 10, generator=generator), torch.randint(3, (48,), generator=generator))


def loader() -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(data(), batch_size=8)


class ResumableLoader:
    """A loader that can go on inside an epoch, with an order of its own in every epoch."""

    def __init__(self) -> None:
        self.epoch = self.done = 0
        self.sampler = self  # Lightning tells samplers the epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Any:
        order = torch.randperm(48, generator=torch.Generator().manual_seed(self.epoch)).split(8)
        for number in range(self.done, BATCHES):
            self.done = (number + 1) % BATCHES
            yield data()[order[number].tolist()]

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


class Net(LightningModule):
    """As many people write them: the parts are called in training_step, there is no forward."""

    def __init__(self, seed: int = 0, schedule: Any = None, **log: Any) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
        self.schedule, self.log_options = schedule, log or {"on_step": False, "on_epoch": True}
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.log("train_loss", loss, **self.log_options)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
        return optimizer if self.schedule is None else {"optimizer": optimizer, "lr_scheduler": self.schedule(optimizer)}


class ManualNet(Net):
    """Manual optimization, with clipping by hand."""

    def __init__(self, seed: int = 0, clip: Any = None) -> None:
        super().__init__(seed)
        self.automatic_optimization = False
        self.clip = clip

    def training_step(self, batch: Any, index: int) -> None:
        optimizer = self.optimizers()
        loss = super().training_step(batch, index)
        optimizer.zero_grad()
        self.manual_backward(loss)
        if self.clip is not None:
            with self.clip.thresholds_aside():
                self.clip_gradients(optimizer, gradient_clip_val=1e-3, gradient_clip_algorithm="norm")
        optimizer.step()


def trainer(sparse: SparseTraining | None, *callbacks: Any, **options: Any) -> Trainer:
    """Saves checkpoints with a ModelCheckpoint alone: Lightning's own would go into the working directory."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    saves = any(isinstance(each, ModelCheckpoint) for each in callbacks)
    everything = [*([] if sparse is None else [sparse]), *callbacks]
    fixed = {"max_epochs": EPOCHS, "accelerator": "cpu", "enable_checkpointing": saves, **quiet}
    return Trainer(**{**fixed, "callbacks": everything, **options})


def fit(
    sparse: SparseTraining, module: LightningModule, *callbacks: Any, path: Any = None, train: Any = None, **options: Any
) -> Trainer:
    """A run from a fixed seed, whatever came before."""
    seed_everything(3, verbose=False)
    made = trainer(sparse, *callbacks, **options)
    made.fit(module, loader() if train is None else train, ckpt_path=path)
    return made
