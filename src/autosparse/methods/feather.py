"""Feather: a threshold between soft and hard, one for all layers, with a scaled gradient for pruned weights."""

from __future__ import annotations

from dataclasses import dataclass

from autosparse.methods.autosparse import AutoSparse
from autosparse.methods.families.base import About, Method
from autosparse.methods.presets import RAMP
from autosparse.methods.registry import register

HIGH_SPARSITY = 0.95  # above it the authors halve the gradient of pruned weights


@dataclass(frozen=True, kw_only=True)
class FeatherThreshold(Method):
    """For an AutoSparse: one shared threshold with a cubic-root shape; alpha starts at the authors' theta."""

    g: str = "identity"
    threshold: str = "shared"
    start_sparsity: float | None = 0.0
    target_sparsity: float | None = 0.9
    target_ramp: float = 0.5
    shape: float = 3.0

    def usual_alpha(self) -> float:
        return 0.5 if (self.target_sparsity or 0) > HIGH_SPARSITY else 1.0


@register
class Feather(FeatherThreshold, AutoSparse):
    """One threshold for all layers, shaped between soft and hard, reached at half of the run.

    AutoSparse with one shared threshold, a cubic-root shape and a constant alpha (the authors' theta).
    """

    about = About(
        name="feather",
        year=2023,
        family="fixed budget",
        pruned_gradient="theta * G, theta 1 or 0.5",
        train_flops="2 f_S + f_D",
        reference="Glentis Georgoulakis et al., Feather: An Elegant Solution to Effective DNN Sparsification, "
        "BMVC 2023, arXiv 2310.02448",
    )

    schedule: str = "constant"


@register
class FeatherGA(FeatherThreshold, AutoSparse):
    """Feather whose gradients of pruned weights are scaled by an annealed alpha.

    As alpha falls, the weight gradient becomes sparse as well.
    """

    about = About(
        name="feather+ga",
        year=2026,
        family="fixed budget",
        pruned_gradient="alpha * G, alpha annealed",
        train_flops="2 f_S + f_D while alpha > 0, 3 f_S after",
        reference="Feather (BMVC 2023) with the Gradient Annealing of AutoSparse (arXiv 2304.06941); this library",
    )

    zero_epoch: int | float | str | None = RAMP
