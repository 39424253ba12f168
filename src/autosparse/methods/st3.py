"""ST-3: one soft threshold over all layers, straight-through gradients, channels scaled back to their magnitude."""

from __future__ import annotations

from dataclasses import dataclass

from autosparse.methods.autosparse import AutoSparse
from autosparse.methods.families.base import About, Method, require
from autosparse.methods.presets import RAMP
from autosparse.methods.registry import register


@dataclass(frozen=True, kw_only=True)
class ST3Threshold(Method):
    """For an AutoSparse: one shared threshold, in units of each layer's spread with `sigma`, and rescaled channels."""

    alpha: float | None = 1.0
    g: str = "identity"
    threshold: str = "shared"
    start_sparsity: float | None = 0.0
    target_sparsity: float | None = 0.9
    rescale: bool = True
    sigma: bool = False

    def __post_init__(self) -> None:
        if self.sigma:
            require(self.threshold in ("shared", "sigma"), f"sigma = True needs one shared threshold, not {self.threshold!r}")
            object.__setattr__(self, "threshold", "sigma")
        super().__post_init__()


@register
class ST3(ST3Threshold, AutoSparse):
    """One soft threshold for all layers on a cubic ramp, straight-through gradients, rescaled channels.

    AutoSparse with one shared threshold that follows a cubic ramp, rescaled channels and alpha = 1 throughout.
    """

    about = About(
        name="st3",
        year=2023,
        family="fixed budget",
        pruned_gradient="G",
        train_flops="2 f_S + f_D",
        reference="Vanderschueren and De Vleeschouwer, Are Straight-Through gradients and Soft-Thresholding all you need for "
        "Sparse Training?, WACV 2023, arXiv 2212.01076",
    )

    schedule: str = "constant"
    target_ramp: float = 1.0


@register
class ST3GA(ST3Threshold, AutoSparse):
    """ST-3 whose gradients of pruned weights are scaled by an annealed alpha.

    As alpha falls, the weight gradient becomes sparse as well.
    """

    about = About(
        name="st3+ga",
        year=2026,
        family="fixed budget",
        pruned_gradient="alpha * G, alpha annealed",
        train_flops="2 f_S + f_D while alpha > 0, 3 f_S after",
        reference="ST-3 (WACV 2023) with the Gradient Annealing of AutoSparse (arXiv 2304.06941); this library",
    )

    zero_epoch: int | float | str | None = RAMP
