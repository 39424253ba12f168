"""SNIP: connection sensitivity before training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from autosparse.methods.families.base import About, Run
from autosparse.methods.families.scored import LossFunction, ScoredMask, Scores, required, summed_gradients
from autosparse.methods.registry import register


@register
class SNIP(ScoredMask):
    """A fixed mask of the largest |w * gradient| on a few batches before training.

    Keeps the weights whose removal would change the loss most: |dL/dm| = |w * G|, summed over batches, normalised.
    """

    about = About(
        name="snip",
        year=2019,
        family="before training",
        pruned_gradient="none",
        train_flops="3 f_S, and 3 f_D for every batch scored",
        reference="Lee et al., SNIP: Single-shot Network Pruning based on Connection Sensitivity, ICLR 2019",
    )

    def saliency(self, sp: Run, batches: Iterable[Any], loss_fn: LossFunction | None) -> Scores:
        gradients, batch_count = summed_gradients(sp, batches, required(loss_fn, "snip"), "SNIP")
        sp.ledger.add_dense_steps(batch_count)
        scores = {layer.name: (layer.weight() * gradients[layer.name]).abs() for layer in sp.layers}
        total = torch.stack([score.double().sum().cpu() for score in scores.values()]).sum()
        if total == 0:
            raise RuntimeError("every gradient is 0: the loss does not depend on the weights on these batches")
        return {name: score / total.to(score) for name, score in scores.items()}
