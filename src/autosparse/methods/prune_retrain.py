"""Training in rounds with magnitude pruning between them; Han 2015 goes on from the surviving weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from autosparse.common.tensors import top_mask
from autosparse.layer import Layer
from autosparse.methods.families.base import About, require
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.methods.families.scored import PRUNED, RankedMask, select

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier

DEFAULT_SPARSITY = 0.9


@dataclass(frozen=True, kw_only=True)
class MagnitudeRounds(RankedMask):
    """Round 0 trains the dense net; before round r = 1..rounds the smallest weights go, down to density (1 - S)^(r/rounds)."""

    rounds: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rounds >= 1, f"rounds = {self.rounds}; it must be at least 1")

    def start(self, run: Sparsifier) -> None:
        super().start(run)
        run.memory["round"] = 0

    def next_round(self, run: Sparsifier) -> bool:
        number = run.memory["round"] + 1
        if number > self.rounds:
            return False
        masks = self.survivors(run, number)
        self.rewind(run)
        self.apply(run, masks)
        run.memory["round"] = number
        run.restart()
        return True

    def survivors(self, run: Sparsifier, number: int) -> dict[str, Tensor]:
        """The masks of round `number`, from the weights as they are trained now; what is pruned stays pruned."""
        scores = {layer.name: _magnitude(layer) for layer in run.layers}
        return select(scores, 1 - (1 - self.final_sparsity()) ** (number / self.rounds), self.scope)

    def final_sparsity(self) -> float:
        raise NotImplementedError

    def rewind(self, run: Sparsifier) -> None:
        """Put back what the next round starts from, the masks not included."""

    def notes(self, run: Sparsifier) -> list[str]:
        return [f"round {run.memory['round']} of {self.rounds}"]


@dataclass(frozen=True, kw_only=True)
class PruneRetrain(MagnitudeRounds):
    """Train, drop the smallest weights, train the survivors on; a budget, or a threshold of `quality` standard deviations."""

    about: ClassVar[About] = About(
        name="prune_retrain",
        year=2015,
        family="after or around training",
        budget="budgeted",
        pruned_gradient="none",
        train_flops="3 f_D + sum over rounds of 3 f_S(round)",
        reference="Han et al., Learning both Weights and Connections for Efficient Neural Networks, NIPS 2015",
        doc="Magnitude pruning of a trained net, then retraining of the survivors, in one or more rounds.",
    )

    sparsity: float | None = None
    quality: float | None = None
    scope: str = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        both = self.sparsity is not None and self.quality is not None
        require(not both, "give sparsity or quality, not both: each decides how much is pruned")
        if self.quality is None:
            object.__setattr__(self, "sparsity", DEFAULT_SPARSITY if self.sparsity is None else self.sparsity)
            require(
                0 <= self.final_sparsity() < 1, f"sparsity = {self.sparsity}; it is the fraction of zeros: 0 <= sparsity < 1"
            )
        else:
            require(self.quality > 0, f"quality = {self.quality}; it must be above 0")
            require(self.scope == "layer", "quality is a threshold for every layer: it needs scope='layer'")

    def final_sparsity(self) -> float:
        assert self.sparsity is not None
        return self.sparsity

    def survivors(self, run: Sparsifier, number: int) -> dict[str, Tensor]:
        if self.quality is None:
            return super().survivors(run, number)
        return {layer.name: _above(layer, self.quality) for layer in run.layers}


def _magnitude(layer: Layer) -> Tensor:
    return layer.weight().abs().masked_fill_(~mask_of(layer), PRUNED)


def _above(layer: Layer, quality: float) -> Tensor:
    """Where |w| exceeds quality * standard deviation of the surviving weights; the largest weight always stays."""
    magnitudes = _magnitude(layer)
    bound = quality * layer.weight()[mask_of(layer)].std(correction=0)
    return top_mask(magnitudes, max(1, int(torch.count_nonzero(magnitudes > bound))))
