"""A run in memory: its objects, where it stands, and its whole state for a checkpoint."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.data import Data
from autosparse.integrations.trackers import scalars
from autosparse.methods import Method
from autosparse.recipes.loading import dump_recipe
from autosparse.recipes.recipe import Recipe
from autosparse.sparsifier import Sparsifier
from autosparse.sparsifier.quantize_aware import attach_as_saved
from autosparse.training import checkpoints, randomness
from autosparse.training.build import stage_epochs
from autosparse.training.folder import RunFolder
from autosparse.training.processes import Processes
from autosparse.training.progress import Progress
from autosparse.training.signals import StopRequest


@dataclass
class Position:
    """Where a run stands: epochs done, batches done of the present one, steps in all."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    best_accuracy: float = -1.0
    best_sparsity: float = 0.0
    best_epoch: int = 0


@dataclass
class Session:
    """Everything that the loop works with."""

    recipe: Recipe
    folder: RunFolder
    processes: Processes
    device: torch.device
    data: Data
    method: Method | None
    model: nn.Module  # the user's class, sparsified
    runner: nn.Module  # the same as it is called in training: compiled, replicated or sharded
    sp: Sparsifier | None
    optimizer: torch.optim.Optimizer
    progress: Progress
    stop: StopRequest
    position: Position = field(default_factory=Position)

    def __post_init__(self) -> None:
        self.steps = self.data.train.steps
        self.stage_epochs = stage_epochs(self.recipe, self.method)
        self.sharded = self.recipe.train.strategy == "fsdp" and self.processes.world > 1
        thresholds = {id(threshold) for threshold in self.sp.thresholds()} if self.sp else set()
        self.weights = [weight for weight in self.model.parameters() if id(weight) not in thresholds]
        self.loss_sum: Tensor = torch.zeros(
            (), dtype=torch.float32 if self.device.type == "mps" else torch.float64, device=self.device
        )
        self.last_accuracy: float | None = None
        self._began = self._saved = time.monotonic()
        self._processor_began = time.process_time()
        self._board = None
        if self.processes.leads and importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.folder.tensorboard))

    @property
    def seconds(self) -> float:
        """Training time so far, that of interrupted parts included."""
        return self.position.seconds + time.monotonic() - self._began

    @property
    def processor_seconds(self) -> float:
        """The same in processor time of this process, which other work on the machine hardly changes."""
        return self.position.processor_seconds + time.process_time() - self._processor_began

    @property
    def save_due(self) -> bool:
        return time.monotonic() - self._saved > 60 * self.recipe.train.save_minutes

    def save(self, *, best: bool = False) -> None:
        """Write a checkpoint; every rank calls it."""
        self.check_finite()
        self._saved = time.monotonic()
        times = {"seconds": self.seconds, "processor_seconds": self.processor_seconds}
        ranks = self.processes.gather({"random": randomness.state(), "loss_sum": float(self.loss_sum)})
        rest = {
            "recipe": dump_recipe(self.recipe),
            "world": self.processes.world,
            "position": {**asdict(self.position), **times},
            "sparsifier": None if self.sp is None else self.sp.state_dict(),
            "ranks": ranks,
        }
        if self.sharded:
            from autosparse.training import sharded  # loads slowly, and few runs need it

            self.processes.share_buffers(self.model)
            sharded.save(self.folder.checkpoints, self.model, self.optimizer, rest, self.processes, best=best)
        elif self.processes.leads:
            state = {**rest, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            checkpoints.save(self.folder.checkpoints, state, best=best)
        self.processes.wait()

    def resume(self) -> bool:
        """Go on from the newest checkpoint; False where there is none yet."""
        rest: dict[str, Any] | None
        if self.sharded:
            from autosparse.training import sharded

            rest = sharded.load(self.folder.checkpoints, self.model, self.optimizer, self.processes)
        else:
            rest = checkpoints.load(self.folder.checkpoints)
        if rest is None:
            return False
        if rest["world"] != self.processes.world:
            raise ValueError(
                f"this run was trained by {rest['world']} processes, these are {self.processes.world}: resume it with "
                f"torchrun --nproc-per-node {rest['world']} -m autosparse train --resume ..."
            )
        if not self.sharded:
            attach_as_saved(self.sp or self.model, rest["model"])
            self.model.load_state_dict(rest["model"])
            self.optimizer.load_state_dict(rest["optimizer"])
        if self.sp is not None:
            self.sp.load_state_dict(rest["sparsifier"])
        self.position = Position(**rest["position"])
        this_rank = rest["ranks"][self.processes.rank]
        self.loss_sum.fill_(this_rank["loss_sum"])
        randomness.restore(this_rank["random"])
        return True

    def targets_per_rank(self, target: Tensor) -> Tensor | int:
        """Targets of a step over all ranks, divided by their number: ranks average gradients, and their shares may differ."""
        if self.data.padding_id is None:
            return target.numel()
        return self.processes.total((target != self.data.padding_id).sum()) / self.processes.world

    def record(self, line: dict[str, Any]) -> None:
        """Write the figures of an epoch; rank 0 alone."""
        if not self.processes.leads:
            return
        self.folder.add_metrics(line)
        if self._board is not None:
            for name, value in line.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, line["step"])
            for name, value in scalars(self.sp).items() if self.sp is not None else ():
                if "/layers/" in name:
                    self._board.add_scalar(name, value, line["step"])
            self._board.flush()

    def close(self) -> None:
        """End the thread that writes for TensorBoard."""
        if self._board is not None:
            self._board.close()

    def check_loss(self) -> None:
        """Stop at a NaN or infinite loss."""
        if not bool(torch.isfinite(self.loss_sum)):
            raise self._diverged()

    def check_finite(self) -> None:
        """Stop at a NaN or infinite loss or weight, before it reaches a checkpoint."""
        local = (weight.to_local() if hasattr(weight, "to_local") else weight for weight in self.weights)  # this rank's part
        sums = [self.loss_sum.detach().float()] + [weight.detach().float().sum() for weight in local]
        if not bool(torch.isfinite(torch.stack(sums)).all()):
            raise self._diverged()

    def _diverged(self) -> Diverged:
        place = self.folder.checkpoints
        saved = f"the last good checkpoint is kept in {place}" if place.exists() else "none was saved"
        return Diverged(
            f"the loss or a weight is no longer a number (epoch {self.position.epoch + 1}, step {self.position.step}); "
            f"{saved}. Try a lower optimizer.lr, a longer warm-up "
            "(schedule.warmup_epochs), train.clip=1.0, or train.precision=float32"
        )


class Diverged(RuntimeError):
    """The loss or a weight is NaN or infinite."""
