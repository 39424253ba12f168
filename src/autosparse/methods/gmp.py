"""GMP: gradual magnitude pruning, a mask that only ever shrinks along a cubic ramp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, require
from autosparse.methods.families.fixed_mask import hold, mask_of, set_mask
from autosparse.methods.families.magnitude import CubicRamp

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


@dataclass(frozen=True, kw_only=True)
class GMP(CubicRamp):
    """Removes the smallest weights of each layer in steps; what is removed is stored as 0 and never returns."""

    about: ClassVar[About] = About(
        name="gmp",
        year=2017,
        family="dense to sparse",
        budget="budgeted",
        pruned_gradient="none",
        train_flops="3 f_S(t)",
        reference="Zhu and Gupta, To prune, or not to prune, arXiv 1710.01878; Gale et al., arXiv 1902.09574",
        doc="The smallest weights go step by step along a cubic ramp and never return.",
    )

    update_every: int | None = 100
    dense_first: bool = True
    last_sparsity: float | None = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.last_sparsity is None or 0 <= self.last_sparsity < 1,
            f"last_sparsity = {self.last_sparsity}; allowed: 0 <= last_sparsity < 1, or None for no limit",
        )

    def finals(self, run: Sparsifier, sparsity: float) -> dict[str, float]:
        finals = super().finals(run, sparsity)
        if self.last_sparsity is not None and self.distribution == "uniform" and not self.dense_last:
            last = run.layers[-1].name
            finals[last] = min(finals[last], self.last_sparsity)
        return finals

    def due(self, run: Sparsifier) -> bool:
        return run.step <= self.window(run)[1] and super().due(run)

    def magnitude(self, layer: Layer) -> Tensor:
        # below every magnitude, so that an active weight that happens to be 0 goes after those that went before
        return torch.where(mask_of(layer), super().magnitude(layer), -1)

    def start(self, run: Sparsifier) -> None:
        for layer in run.layers:
            mask_of(layer).fill_(True)
        super().start(run)

    def refresh(self, run: Sparsifier) -> None:
        for layer, mask in zip(run.layers, self.largest(run, self.sparsity), strict=True):
            set_mask(run, layer, mask)

    def after_step(self, run: Sparsifier) -> None:
        super().after_step(run)
        for layer in run.layers:
            hold(layer)
