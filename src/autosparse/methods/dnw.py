"""DNW: the largest weights of every forward pass, and a dense straight-through gradient for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from autosparse.methods.families.base import About
from autosparse.methods.families.magnitude import DenseGradient


@dataclass(frozen=True, kw_only=True)
class DNW(DenseGradient):
    """Discovering neural wirings: top-k by |w| at every step, dW = G for all weights."""

    about: ClassVar[About] = About(
        name="dnw",
        year=2019,
        family="dense to sparse",
        budget="budgeted",
        pruned_gradient="G (alpha * G with ga)",
        train_flops="2 f_S + f_D",
        reference="Wortsman et al., Discovering Neural Wirings, NeurIPS 2019",
        doc="The largest weights at every step; all weights receive the dense gradient.",
    )
