"""Iterative magnitude pruning with rewinding: the search for lottery tickets."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from autosparse.common.tensors import assign
from autosparse.methods.families.base import About, require
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.methods.prune_retrain import DEFAULT_SPARSITY, MagnitudeRounds

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


@dataclass(frozen=True, kw_only=True)
class LotteryTicket(MagnitudeRounds):
    """Train, drop the smallest weights, put weights, norms and optimizer back to the start (or to an early epoch), repeat."""

    about: ClassVar[About] = About(
        name="lottery",
        year=2019,
        family="after or around training",
        budget="budgeted",
        pruned_gradient="none",
        train_flops="3 f_D + sum over rounds of 3 f_S(round)",
        reference="Frankle and Carbin, The Lottery Ticket Hypothesis: Finding Sparse, Trainable Neural Networks, ICLR 2019",
        doc="Iterative magnitude pruning; every round trains the survivors again from their early values.",
    )

    sparsity: float = DEFAULT_SPARSITY
    rounds: int = 10
    rewind_epoch: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.sparsity < 1, f"sparsity = {self.sparsity}; it is the fraction of zeros: 0 <= sparsity < 1")
        require(self.rewind_epoch >= 0, f"rewind_epoch = {self.rewind_epoch}; it must be at least 0")

    def final_sparsity(self) -> float:
        return self.sparsity

    def check(self, run: Sparsifier) -> None:
        require(
            self.rewind_epoch < run.epochs,
            f"rewind_epoch = {self.rewind_epoch} lies beyond a round of {run.epochs} epochs",
        )

    def start(self, run: Sparsifier) -> None:
        super().start(run)
        run.memory["rewind"] = _tensors(run)
        run.memory["rewind_optimizers"] = None

    def ready(self, run: Sparsifier) -> None:
        if self.rewind_epoch == 0 and run.step == 0 and run.memory["round"] == 0:
            # Parameters may have been set after `start`; buffers are the older ones, from before the first forward pass.
            parameters = {name: value.detach().clone() for name, value in run.model.named_parameters(remove_duplicate=False)}
            run.memory["rewind"] = {**run.memory["rewind"], **parameters}
            run.memory["rewind_optimizers"] = _optimizers(run)

    def end_epoch(self, run: Sparsifier, loss: float | None) -> None:
        if run.epoch + 1 == self.rewind_epoch and run.memory["round"] == 0:
            run.memory["rewind"] = _tensors(run)
            run.memory["rewind_optimizers"] = _optimizers(run)

    def rewind(self, run: Sparsifier) -> None:
        saved = run.memory["rewind_optimizers"]
        if saved is None:
            raise RuntimeError(
                "there is nothing to rewind to yet: "
                + (f"train through epoch {self.rewind_epoch} of" if self.rewind_epoch else "train")
                + " the first round before sp.next_round(optimizer)"
            )
        if run.step == 0:
            raise RuntimeError(
                "this round has not been trained: its weights are the rewound ones, there is nothing to prune by"
            )
        if len(saved) != len(run.optimizers):
            raise RuntimeError(
                f"{len(saved)} optimizers were bound in the first round, {len(run.optimizers)} are now: sp.bind them"
            )
        own = run.model.state_dict()
        for key, value in run.memory["rewind"].items():
            assign(own[key], value)
        for optimizer, state in zip(run.optimizers, saved, strict=True):
            optimizer.load_state_dict(copy.deepcopy(state))


def _tensors(run: Sparsifier) -> dict[str, Tensor]:
    """A copy of all parameters and buffers but the masks."""
    masks = {id(mask_of(layer)) for layer in run.layers}
    skipped = {name for name, buffer in run.model.named_buffers(remove_duplicate=False) if id(buffer) in masks}
    state = run.model.state_dict().items()
    return {key: value.detach().clone() for key, value in state if isinstance(value, Tensor) and key not in skipped}


def _optimizers(run: Sparsifier) -> list[dict[str, object]]:
    """The optimizers' state and hyperparameters, copied."""
    return [copy.deepcopy(optimizer.state_dict()) for optimizer in run.optimizers]
