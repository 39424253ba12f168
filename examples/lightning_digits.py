"""A sparse net in Lightning: the LightningModule is an ordinary one, one callback makes it 80 % sparse."""

import sys
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from autosparse import AutoSparse
from autosparse.integrations.lightning import SparseTraining


class Digits(LightningModule):
    """Nothing in here knows of sparsity."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.net(images)
        return found

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        hits = (self(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", hits, batch_size=len(batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs or 1)]


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    train, test = random_split(TensorDataset(pixels, torch.tensor(labels)), [1347, 450])
    return DataLoader(train, 64, shuffle=True), DataLoader(test, 450)


def main(epochs: int = 15) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, test = loaders()
    module = Digits()
    sparse = SparseTraining(AutoSparse(target_sparsity=0.8))
    trainer = Trainer(
        max_epochs=epochs, gradient_clip_val=1.0, callbacks=[sparse], accelerator="cpu",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, train, test)
    metrics = {name: f"{value:.3f}" for name, value in trainer.callback_metrics.items()}
    print(sparse.sparsifier.report())
    print(f"test accuracy {metrics['accuracy']} with {sparse.sparsifier.sparsity():.1%} zeros; logged: {metrics}")
    sparse.sparsifier.finalize()
    print("plain again:", ", ".join(module.state_dict()))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
