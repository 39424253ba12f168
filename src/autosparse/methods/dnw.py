"""DNW: the largest weights of every forward pass, and a dense straight-through gradient for all."""

from __future__ import annotations

from autosparse.methods.families.base import About
from autosparse.methods.families.magnitude import DenseGradient, Magnitude
from autosparse.methods.registry import register


@register
class DNW(DenseGradient, Magnitude):
    """The largest weights at every step; all weights receive the dense gradient."""

    about = About(
        name="dnw",
        year=2019,
        family="fixed budget",
        pruned_gradient="G (alpha * G with ga)",
        train_flops="2 f_S + f_D",
        reference="Wortsman et al., Discovering Neural Wirings, NeurIPS 2019",
    )
