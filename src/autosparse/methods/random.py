"""A fixed random mask: the baseline of every method that chooses one."""

from __future__ import annotations

from autosparse.methods.families.base import About
from autosparse.methods.families.budget import Budgeted
from autosparse.methods.registry import register


@register
class Random(Budgeted):
    """A random mask drawn before training, with uniform, ER or ERK densities."""

    about = About(
        name="random",
        year=2022,
        family="baselines",
        pruned_gradient="0",
        train_flops="3 f_S",
        reference="Liu et al., The Unreasonable Effectiveness of Random Pruning: Return of the Most Naive Baseline for "
        "Sparse Training, ICLR 2022, arXiv 2202.02643",
    )
