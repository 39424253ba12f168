"""Training in rounds with magnitude pruning between them; Han 2015 goes on from the surviving weights."""

from __future__ import annotations

import torch
from torch import Tensor

from autosparse.common.tensors import top_mask
from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run, Traits, require, require_sparsity
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.methods.families.rounds import MagnitudeRounds, surviving_magnitudes
from autosparse.methods.registry import register

DEFAULT_SPARSITY = 0.9
RETRAIN_RATE = 0.1  # the paper's: a tenth to a hundredth, depending on the net


@register
class PruneRetrain(MagnitudeRounds):
    """Magnitude pruning of a trained net, then retraining of the survivors, in one or more rounds.

    Train, drop the smallest weights, train the survivors on; a budget, or a threshold of `quality` standard deviations.
    """

    about = About(
        name="prune_retrain",
        year=2015,
        family="baselines",
        pruned_gradient="none",
        train_flops="3 f_D + sum over rounds of 3 f_S(round)",
        reference="Han et al., Learning both Weights and Connections for Efficient Neural Networks, NIPS 2015",
    )
    facts = Traits(retrain_rate=RETRAIN_RATE)

    sparsity: float | None = None
    quality: float | None = None
    scope: str = "layer"

    def __post_init__(self) -> None:
        super().__post_init__()
        both = self.sparsity is not None and self.quality is not None
        require(not both, "give sparsity or quality, not both: each decides how much is pruned")
        if self.quality is None:
            object.__setattr__(self, "sparsity", DEFAULT_SPARSITY if self.sparsity is None else self.sparsity)
            require_sparsity("sparsity", self.final_sparsity())
        else:
            require(self.quality > 0, f"quality = {self.quality}; it must be above 0")
            require(self.scope == "layer", "quality is a threshold for every layer: it needs scope='layer'")

    def final_sparsity(self) -> float:
        assert self.sparsity is not None
        return self.sparsity

    def survivors(self, sp: Run, number: int) -> dict[str, Tensor]:
        if self.quality is None:
            return super().survivors(sp, number)
        return {layer.name: _above(layer, self.quality) for layer in sp.layers}


def _above(layer: Layer, quality: float) -> Tensor:
    """Where |w| exceeds quality * standard deviation of the surviving weights; the largest weight always stays."""
    magnitudes = surviving_magnitudes(layer)
    bound = quality * layer.weight()[mask_of(layer)].std(correction=0)
    return top_mask(magnitudes, max(1, int(torch.count_nonzero(magnitudes > bound))))
