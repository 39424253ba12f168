"""GMP: gradual magnitude pruning, a mask that only ever shrinks along a cubic ramp."""

from __future__ import annotations

import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run, require
from autosparse.methods.families.fixed_mask import mask_of, set_mask
from autosparse.methods.families.magnitude import CubicRamp, Magnitude
from autosparse.methods.registry import register


@register
class GMP(CubicRamp, Magnitude):
    """The smallest weights go step by step along a cubic ramp and never return."""

    about = About(
        name="gmp",
        year=2017,
        family="fixed budget",
        pruned_gradient="none",
        train_flops="3 f_S(t)",
        reference="Zhu and Gupta, To prune, or not to prune, arXiv 1710.01878; Gale et al., arXiv 1902.09574",
    )

    stores_zeros = True

    update_every: int | None = 100
    dense_first: bool = True
    last_sparsity: float | None = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.last_sparsity is None or 0 <= self.last_sparsity < 1,
            f"last_sparsity = {self.last_sparsity}; allowed: 0 <= last_sparsity < 1, or None for no limit",
        )

    def finals(self, sp: Run, sparsity: float) -> dict[str, float]:
        finals = super().finals(sp, sparsity)
        if self.last_sparsity is not None and self.distribution == "uniform" and not self.dense_last:
            last = sp.layer_order[-1]
            finals[last] = min(finals[last], self.last_sparsity)
        return finals

    def due(self, sp: Run) -> bool:
        return sp.step <= self.window(sp)[1] and super().due(sp)

    def magnitude(self, layer: Layer) -> Tensor:
        # below every magnitude, so that an active weight that happens to be 0 goes after those that went before
        return torch.where(mask_of(layer), super().magnitude(layer), -1)

    def start(self, sp: Run) -> None:
        for layer in sp.layers:
            mask_of(layer).fill_(True)
        super().start(sp)

    def renew(self, sp: Run) -> None:
        for layer, mask in zip(sp.layers, self.largest(sp), strict=True):
            set_mask(sp, layer, mask)
