"""Keep: a network that is already sparse trains on, and its zeros stay."""

from __future__ import annotations

import torch

from autosparse.common.words import few
from autosparse.methods.families.base import About, Run, Traits, require
from autosparse.methods.families.fixed_mask import FixedMask, set_mask
from autosparse.methods.registry import register


@register
class Keep(FixedMask):
    """Trains a network that is already sparse without losing a zero.

    The mask is where the weights are not zero when training starts.
    """

    about = About(
        name="keep",
        year=2015,
        family="already sparse",
        pruned_gradient="none",
        train_flops="3 f_S",
        reference="Han et al., Learning both Weights and Connections for Efficient Neural Networks, NeurIPS 2015",
        budget="budgeted",
    )
    facts = Traits(needs_zeros=True)

    def check(self, sp: Run) -> None:
        weights = [layer.weight() for layer in sp.layers if not layer.stored.is_meta]
        require(
            not weights or any(bool((weight == 0).any()) for weight in weights),
            "keep holds the zeros that a model has, and this one has none: load the sparse weights before sparsify "
            "(model.load_state_dict, autosparse.load_sparse), prune the model first (Wanda), or choose a method that prunes",
        )

    def start(self, sp: Run) -> None:
        for layer in sp.layers:
            set_mask(sp, layer, layer.weight() != 0)

    def notes(self, sp: Run) -> list[str]:
        whole = [layer.name for layer in sp.layers if bool(torch.all(layer.active()))]
        return [f"no zeros to keep in {few(whole)}"] if whole else []
