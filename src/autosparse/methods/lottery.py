"""Iterative magnitude pruning with rewinding: the search for lottery tickets."""

from __future__ import annotations

import copy

from autosparse.methods.families.base import About, Run, require, require_sparsity
from autosparse.methods.families.rounds import MagnitudeRounds, remember, rewind
from autosparse.methods.prune_retrain import DEFAULT_SPARSITY
from autosparse.methods.registry import register


@register
class LotteryTicket(MagnitudeRounds):
    """Iterative magnitude pruning; every round trains the survivors again from their early values.

    Train, drop the smallest weights, put weights, norms and optimizer back to the start (or to an early epoch), repeat.
    """

    about = About(
        name="lottery",
        year=2019,
        family="baselines",
        pruned_gradient="none",
        train_flops="3 f_D + sum over rounds of 3 f_S(round)",
        reference="Frankle and Carbin, The Lottery Ticket Hypothesis: Finding Sparse, Trainable Neural Networks, ICLR 2019",
    )

    sparsity: float = DEFAULT_SPARSITY
    rounds: int = 10
    rewind_epoch: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sparsity("sparsity", self.sparsity)
        require(self.rewind_epoch >= 0, f"rewind_epoch = {self.rewind_epoch}; it must be at least 0")

    def final_sparsity(self) -> float:
        return self.sparsity

    def check(self, sp: Run) -> None:
        require(self.rewind_epoch < sp.epochs, f"rewind_epoch = {self.rewind_epoch} lies beyond a round of {sp.epochs} epochs")

    def start(self, sp: Run) -> None:
        super().start(sp)
        remember(sp)
        sp.memory["rewind_optimizers"] = None

    def before_step(self, sp: Run) -> bool:
        if self.rewind_epoch == 0 and sp.step == 0 and sp.memory["round"] == 0:
            # Parameters may have been set after `start`; buffers are the older ones, from before the first forward pass.
            parameters = {name: value.detach().clone() for name, value in sp.model.named_parameters(remove_duplicate=False)}
            sp.memory["rewind"] = {**sp.memory["rewind"], **parameters}
            sp.memory["rewind_optimizers"] = _optimizers(sp)
        return False

    def end_epoch(self, sp: Run, loss: float | None) -> None:
        if sp.epoch + 1 == self.rewind_epoch and sp.memory["round"] == 0:
            remember(sp)
            sp.memory["rewind_optimizers"] = _optimizers(sp)

    def rewind(self, sp: Run) -> None:
        saved = sp.memory["rewind_optimizers"]
        if saved is None:
            raise RuntimeError(
                "there is nothing to rewind to yet: "
                + (f"train through epoch {self.rewind_epoch} of" if self.rewind_epoch else "train")
                + " the first round before sp.next_round(optimizer)"
            )
        if sp.step == 0:
            raise RuntimeError(
                "this round has not been trained: its weights are the rewound ones, there is nothing to prune by"
            )
        if len(saved) != len(sp.optimizers):
            raise RuntimeError(
                f"{len(saved)} optimizers were bound in the first round, {len(sp.optimizers)} are now: sp.bind them"
            )
        rewind(sp)
        for optimizer, state in zip(sp.optimizers, saved, strict=True):
            optimizer.load_state_dict(copy.deepcopy(state))


def _optimizers(sp: Run) -> list[dict[str, object]]:
    """The optimizers' state and hyperparameters, copied."""
    return [copy.deepcopy(optimizer.state_dict()) for optimizer in sp.optimizers]
