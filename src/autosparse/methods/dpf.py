"""DPF: dynamic pruning with feedback, a global magnitude mask under a cubic ramp over weights that all keep learning."""

from __future__ import annotations

from autosparse.distributions import DISTRIBUTIONS
from autosparse.methods.families.base import About
from autosparse.methods.families.budget import GLOBAL
from autosparse.methods.families.magnitude import CubicRamp, DenseGradient, Magnitude
from autosparse.methods.registry import register


@register
class DPF(CubicRamp, DenseGradient, Magnitude):
    """A global magnitude mask, renewed every few steps under a cubic ramp; pruned weights keep learning.

    Every 16 steps the globally largest weights become active; the gradient at W * m is applied to all of W.
    """

    allocations = (*DISTRIBUTIONS, GLOBAL)
    about = About(
        name="dpf",
        year=2020,
        family="fixed budget",
        pruned_gradient="G (alpha * G with ga)",
        train_flops="2 f_S(t) + f_D",
        reference="Lin et al., Dynamic Model Pruning with Feedback, ICLR 2020",
    )

    distribution: str = GLOBAL
    update_every: int | None = 16
    dense_last: bool = True
    begin: float = 0.0
    end: float = 0.75
