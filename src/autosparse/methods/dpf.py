"""DPF: dynamic pruning with feedback, a global magnitude mask under a cubic ramp over weights that all keep learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autosparse.distributions import DISTRIBUTIONS
from autosparse.methods.families.base import About
from autosparse.methods.families.magnitude import GLOBAL, CubicRamp, DenseGradient


@dataclass(frozen=True, kw_only=True)
class DPF(CubicRamp, DenseGradient):
    """Every 16 steps the globally largest weights become active; the gradient at W * m is applied to all of W."""

    allocations: ClassVar[tuple[str, ...]] = (*DISTRIBUTIONS, GLOBAL)
    about: ClassVar[About] = About(
        name="dpf",
        year=2020,
        family="dense to sparse",
        budget="budgeted",
        pruned_gradient="G (alpha * G with ga)",
        train_flops="2 f_S(t) + f_D",
        reference="Lin et al., Dynamic Model Pruning with Feedback, ICLR 2020",
        doc="A global magnitude mask, renewed every few steps under a cubic ramp; pruned weights keep learning.",
    )

    distribution: str = GLOBAL
    update_every: int | None = 16
    dense_last: bool = True
    begin: float = 0.0
    end: float = 0.75
