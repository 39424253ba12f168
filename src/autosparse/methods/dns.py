"""DNS: dynamic network surgery, pruning and splicing between two fixed thresholds."""

from __future__ import annotations

import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, Run, require
from autosparse.methods.families.fixed_mask import mask_of
from autosparse.methods.families.magnitude import DenseGradient
from autosparse.methods.registry import register


@register
class DNS(DenseGradient):
    """Masks from two thresholds per layer, renewed ever more rarely; pruned weights go on learning and may return.

    Cuts a weight when |w| <= (1 - margin) * T, splices it when |w| > (1 + margin) * T; T = mean + c_rate * std of |w|.
    """

    about = About(
        name="dns",
        year=2016,
        family="baselines",
        pruned_gradient="G (alpha * G with ga)",
        train_flops="2 f_S + f_D",
        reference="Guo et al., Dynamic Network Surgery for Efficient DNNs, NIPS 2016",
    )

    c_rate: float = 1.0
    margin: float = 0.1
    gamma: float = 1e-4
    power: float = 1.0
    iter_stop: int | None = None
    dense_first: bool = False
    dense_last: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.margin < 1, f"margin = {self.margin}; allowed: 0 <= margin < 1")
        require(self.gamma >= 0, f"gamma = {self.gamma}; it must be at least 0")
        require(self.power >= 0, f"power = {self.power}; it must be at least 0")
        require(self.iter_stop is None or self.iter_stop >= 1, f"iter_stop = {self.iter_stop}; it must be at least 1")

    def start(self, sp: Run) -> None:
        sp.memory["threshold"] = {layer.name: self._threshold(layer.weight()) for layer in sp.layers}
        for layer in sp.layers:
            mask_of(layer).fill_(True)
            self._operate(sp, layer)

    def _threshold(self, weight: Tensor) -> float:
        """T from the non-zero weights, as they are before the first step; fixed from then on."""
        magnitudes = weight[weight != 0].abs().double()
        if not len(magnitudes):
            return 0.0
        return max(float(magnitudes.mean() + self.c_rate * magnitudes.std(correction=0)), 0.0)

    def _operate(self, sp: Run, layer: Layer) -> None:
        threshold = sp.memory["threshold"][layer.name]
        magnitudes, mask = layer.weight().abs(), mask_of(layer)
        stays = mask & (magnitudes > (1 - self.margin) * threshold)
        mask.copy_(stays | (magnitudes > (1 + self.margin) * threshold))

    def after_step(self, sp: Run) -> None:
        if self.iter_stop is not None and sp.step >= self.iter_stop:
            return
        probability = (1 + self.gamma * sp.step) ** -self.power
        # One draw per layer, in the order of the layers, whatever comes of it.
        for layer, draw in zip(sp.layers, torch.rand(len(sp.layers), generator=sp.generator).tolist(), strict=True):
            if probability > draw:
                self._operate(sp, layer)
