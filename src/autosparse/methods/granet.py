"""GraNet: gradual magnitude pruning over all layers together, with a RigL exchange inside every layer at each update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run, require
from autosparse.methods.families.budget import count_of_all, require_start, top_of_all
from autosparse.methods.families.drop_grow import DropAndGrow, GrowsByGradient
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.methods.registry import register
from autosparse.schedules import cubic


@register
class GraNet(GrowsByGradient, DropAndGrow):
    """Prunes from a sparse start to the final sparsity while regrowing by gradient: GMP's step, then RigL's.

    Starts sparse; every update prunes globally along a cubic ramp, then drops by |w| and grows by |G| in each layer.
    """

    about = About(
        name="granet",
        year=2021,
        family="sparse to sparse",
        pruned_gradient="G at update steps (to choose what grows), 0 between",
        train_flops="(3 f_S(t) dT + 2 f_S(t) + f_D) / (dT + 1)",
        reference="Liu et al., Sparse Training via Boosting Pruning Plasticity with Neuroregeneration, NeurIPS 2021, "
        "arXiv 2106.10404",
    )

    distribution: str = "erk"
    update_every: int | None = 100
    drop_fraction: float = 0.5
    final_drop_fraction: float = 0.005
    start_sparsity: float = 0.5
    ramp_end: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_start(self.start_sparsity, self.sparsity)
        require(0 < self.ramp_end <= 1, f"ramp_end = {self.ramp_end}; it is a part of the run: 0 < ramp_end <= 1")

    def start_budget(self, sp: Run) -> dict[str, int]:
        return self.budget(sp, self.start_sparsity)

    def due(self, sp: Run) -> bool:
        return super().due(sp) or sp.step == self.last_rise(sp)

    def last_rise(self, sp: Run) -> int:
        """The step at which the final sparsity is reached, whatever the period."""
        return min(round(self.ramp_end * sp.total_steps), sp.total_steps - 1)

    def at_target(self, sp: Run) -> bool:
        return sp.step >= self.last_rise(sp)

    def renew(self, sp: Run) -> None:
        layers = self.sparse_layers(sp)
        for layer, active in zip(layers, self.pruned(layers, sp), strict=True):
            self.exchange(sp, layer, active)

    def pruned(self, layers: Sequence[Layer], sp: Run) -> list[Tensor]:
        """The active weights after the global step of the ramp; at least one of every layer stays."""
        magnitudes = [torch.where(mask_of(layer), layer.weight().abs(), -1) for layer in layers]
        sparsity = cubic(sp.step / max(1, self.last_rise(sp)), self.start_sparsity, self.sparsity)
        active = sum(int(torch.count_nonzero(mask_of(layer))) for layer in layers)
        return top_of_all(magnitudes, min(count_of_all(magnitudes, sparsity), active), keep_one=True)
