"""SET: sparse evolutionary training. Drop the weights nearest to zero, grow as many at random."""

from __future__ import annotations

import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run, require
from autosparse.methods.families.drop_grow import DropAndGrow, drop
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.methods.registry import register


@register
class SET(DropAndGrow):
    """Replaces the smallest weights by random ones, every epoch.

    At the end of every epoch (or every update_every steps) drop_fraction of the weights is replaced at random.
    """

    about = About(
        name="set",
        year=2018,
        family="sparse to sparse",
        pruned_gradient="0",
        train_flops="3 f_S",
        reference="Mocanu et al., Scalable training of artificial neural networks with adaptive sparse connectivity "
        "inspired by network science, Nature Communications 9, 2018, arXiv 1707.04780",
    )

    distribution: str = "er"
    drop_decay: str = "constant"
    drop_by: str = "magnitude"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.drop_decay in ("constant", "cosine"), f"drop_decay = {self.drop_decay!r}; allowed: constant, cosine")
        require(self.drop_by in ("magnitude", "signed"), f"drop_by = {self.drop_by!r}; allowed: magnitude, signed")

    def fraction(self, sp: Run) -> float:
        return self.drop_fraction if self.drop_decay == "constant" else super().fraction(sp)

    def drop_scores(self, layer: Layer, sp: Run) -> Tensor:
        size = super().drop_scores(layer, sp)
        return size if self.drop_by == "magnitude" else signed_ranks(layer.weight(), mask_of(layer), self.fraction(sp))


def signed_ranks(weight: Tensor, active: Tensor, fraction: float) -> Tensor:
    """Scores with which the positive and the negative weights each lose the same part of their smallest ones.

    Those to go score below 0; where rounding asks for one more or one less, the smallest magnitude decides.
    """
    going = torch.zeros_like(active)
    for side in (active & (weight > 0), active & (weight < 0)):
        going |= side & ~drop(side, weight.abs(), int(fraction * int(torch.count_nonzero(side))))
    return torch.where(going, -1 / (1 + weight.abs()), weight.abs())
