"""GraSP: keep the gradient flow before training."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from autosparse.methods.families.base import About, Run, require
from autosparse.methods.families.scored import LossFunction, ScoredMask, Scores, required, summed_gradients
from autosparse.methods.registry import register

_DENSE_STEPS = 4  # per batch: one for the gradient, three for gradient, its double backward and the forward pass below it


@register
class GraSP(ScoredMask):
    """A fixed mask of the largest w * (Hessian * gradient) on a few batches before training.

    Removes the weights with the highest -w * (H g), which hold the squared gradient norm back or help it least.
    """

    about = About(
        name="grasp",
        year=2020,
        family="before training",
        pruned_gradient="none",
        train_flops="3 f_S, and 12 f_D for every batch scored",
        reference="Wang et al., Picking Winning Tickets Before Training by Preserving Gradient Flow, ICLR 2020",
    )

    temperature: float = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.temperature > 0, f"temperature = {self.temperature}; it must be above 0 (1 leaves the logits alone)")

    def saliency(self, sp: Run, batches: Iterable[Any], loss_fn: LossFunction | None) -> Scores:
        fixed = list(batches)  # both passes must see the same data
        loss = required(loss_fn, "grasp")
        cooled = sp.model.register_forward_hook(self._cool) if self.temperature != 1 else nullcontext()
        with cooled, sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no second derivative
            gradients, batch_count = summed_gradients(sp, fixed, loss, "GraSP: gradient")
            products, _ = summed_gradients(sp, fixed, loss, "GraSP: Hessian", along=gradients)
        sp.ledger.add_dense_steps(_DENSE_STEPS * batch_count)
        return {layer.name: layer.weight() * products[layer.name] for layer in sp.layers}

    def _cool(self, model: nn.Module, inputs: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise TypeError(
                f"grasp divides the logits by temperature = {self.temperature}, but the model returns {type(output).__name__}: "
                "use temperature=1 and divide the logits in loss_fn"
            )
        return output / self.temperature
