"""Small modules that sit on a weight and give the effective weight; what they hold is a layer's sparse state."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from autosparse import functional
from autosparse.tensors import assign, kth_smallest, split_at, whole


class SparseParametrization(nn.Module):
    """Base: a gate (what pruned weights receive of their gradient) and the set of active weights."""

    gate: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        # Not persistent: the Sparsifier owns alpha and pushes it here. One buffer a layer, since shared ones split on .to().
        self.register_buffer("gate", torch.zeros(1, device=weight.device), persistent=False)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """What is stored when a plain weight is assigned."""
        return weight

    def active(self, weight: Tensor) -> Tensor:
        """Where the effective weight is not zero, given the stored (whole or local) weight."""
        raise NotImplementedError

    def limit_density(self, weight: Tensor, density: float) -> bool:
        """Bring the layer back to at least this density; False where the method has no means to."""
        return False

    def threshold_values(self) -> Tensor | None:
        """The pruning thresholds in units of the weight, if the method has any."""
        return None


class SoftThreshold(SparseParametrization):
    """sign(w) * relu(|w| - g(s)) with a learned s for the layer or each channel, or a shared unlearned one."""

    threshold: Tensor

    def __init__(self, weight: Tensor, shape: tuple[int, ...], function: str, learned: bool, backward_sparsity: float) -> None:
        super().__init__(weight)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        start = torch.zeros(shape, dtype=dtype, device=weight.device)
        if learned:
            self.threshold = nn.Parameter(start)
        else:
            self.register_buffer("threshold", start)
        self.function = function
        self.backward_sparsity = backward_sparsity
        self.reach: Tensor | None
        self.register_buffer("reach", torch.zeros(1, dtype=dtype, device=weight.device) if backward_sparsity else None)

    def forward(self, weight: Tensor) -> Tensor:
        value = functional.threshold_value(self.threshold, self.function)
        return functional.soft_threshold(weight, value, self.gate, self.reach)

    def threshold_values(self) -> Tensor:
        return functional.threshold_value(whole(self.threshold.detach()), self.function)

    def active(self, weight: Tensor) -> Tensor:
        return functional.is_active(weight, self.threshold_values())

    def set_threshold(self, value: Tensor) -> None:
        """Set T itself; s follows."""
        assign(
            self.threshold,
            functional.threshold_inverse(value.to(self.threshold.dtype), self.function).expand(self.threshold.shape),
        )

    def start_at(self, weight: Tensor, sparsity: float) -> None:
        """Every unit that has a threshold of its own starts at this sparsity, from the k-th value of |w|."""
        channel = next((dim for dim, size in enumerate(self.threshold.shape) if size > 1), None)
        magnitudes = weight.detach().abs()
        if channel is None:
            self.set_threshold(split_at(magnitudes, round(sparsity * weight.numel())))
            return
        rows = magnitudes.movedim(channel, 0).reshape(self.threshold.numel(), -1)
        values = torch.stack([split_at(row, round(sparsity * row.numel())) for row in rows])
        self.set_threshold(values.reshape(self.threshold.shape))

    def limit_density(self, weight: Tensor, density: float) -> bool:
        keep = max(1, math.ceil(density * weight.numel()))  # rounding down would leave it below the floor
        bound = split_at(weight.detach().abs(), weight.numel() - keep).to(self.threshold.dtype)
        self.set_threshold(torch.minimum(self.threshold_values(), bound))
        return True

    def refresh_reach(self, weight: Tensor) -> None:
        """The magnitude from which on weights belong to the top-B set: n - floor(b * n) of them."""
        if self.reach is not None:
            excluded = int(self.backward_sparsity * weight.numel())
            assign(self.reach, kth_smallest(weight.detach().abs(), excluded + 1).to(self.reach.dtype).reshape(1))


class Masked(SparseParametrization):
    """w * mask with a mask that the method sets; pruned weights receive gate * G, inside `receives` if the method has one."""

    mask: Tensor

    def __init__(self, weight: Tensor, restricts_gradient: bool = False) -> None:
        super().__init__(weight)
        # in the weight's memory format: elementwise work on mixed formats is many times slower
        self.register_buffer("mask", torch.ones_like(weight, dtype=torch.bool, requires_grad=False))
        self.receives: Tensor | None
        self.register_buffer("receives", self.mask.clone() if restricts_gradient else None)

    def forward(self, weight: Tensor) -> Tensor:
        return functional.gated_mask(weight, self.mask, self.gate, self.receives)

    def active(self, weight: Tensor) -> Tensor:
        return self.mask
