"""Small modules that sit on a weight and give the effective weight; what they hold is a layer's sparse state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autosparse import functional
from autosparse.common.tensors import assign, kth_smallest, start_bound, threshold_for, threshold_under_ties, whole

NARROW = (torch.float16, torch.bfloat16)


class SparseParametrization(nn.Module):
    """Base: a gate (what pruned weights receive of their gradient) and the set of active weights."""

    gate: Tensor
    counts_only_wide = False  # whether `cached_count` knows nothing of a layer that `refuse_narrow` would refuse

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        # Not persistent: the Sparsifier owns alpha and pushes it here. One buffer per layer, since shared ones split on .to().
        self.register_buffer("gate", torch.zeros(1, device=weight.device), persistent=False)
        self.took_plain_weight = False  # since the method's start looked at the weights

    def open_gate(self, value: float) -> None:
        """Set what pruned weights receive of their gradient."""
        self.gate.fill_(value)

    @property
    def gradient_entries(self) -> str:
        """Which entries of dL/d(effective weight) backward uses now: "all", "active", or "mask" (see `gradient_mask`)."""
        return "all"

    def gradient_mask(self, weight: Tensor) -> Tensor:
        """Under "mask": where they are used."""
        raise NotImplementedError

    def gradient_density(self, weight: Tensor) -> float:
        """The fraction of entries that backward uses now, given the stored weight."""
        if self.gradient_entries == "all":
            return 1.0
        used = self.count_active(weight) if self.gradient_entries == "active" else self.gradient_mask(weight).count_nonzero()
        return int(used) / weight.numel()

    def gradient_floor(self) -> float:
        """The least share of weights whose gradient backward computes now; active ones always receive theirs."""
        return 1.0

    def harden(self, weight: Tensor) -> None:
        """Before the zeros are baked in: make a soft mask hard."""

    def right_inverse(self, weight: Tensor) -> Tensor:
        """What is stored when a plain weight is assigned."""
        return weight

    def unpruned(self, stored: Tensor) -> Tensor:
        """The plain weight that is stored, before anything is pruned."""
        return stored

    def active(self, weight: Tensor) -> Tensor:
        """Where the effective weight is not zero, given the stored (whole or local) weight."""
        raise NotImplementedError

    def count_active(self, weight: Tensor) -> Tensor:
        return torch.count_nonzero(self.active(weight))

    def cached_count(self, weight: Tensor) -> int | None:
        """The active weights as the last forward pass has counted them, if it has and nothing has changed since.

        Only for use within a step: torch does not notice what is written through `.data`.
        """
        return None

    def limit_density(self, weight: Tensor, density: float) -> bool:
        """Bring the layer back to at least this density; False where the method has no means to."""
        return False

    def threshold_values(self) -> Tensor | None:
        """The pruning thresholds in units of the weight, if the method has any."""
        return None

    def refuse_narrow(self, layer: str) -> None:
        """What the method learns or steers must not have been cast to half precision."""
        for name, value in (*self._parameters.items(), ("threshold", self._buffers.get("threshold"))):
            if value is not None and value.dtype in NARROW:
                raise RuntimeError(
                    f"{layer}: {name} was cast to {value.dtype}: its small changes would be rounded away; "
                    "cast the model before sparsify"
                )


class Gated(SparseParametrization):
    """One whose pruned weights receive gate * G and nothing else: with a closed gate only active weights need a gradient."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self.is_open = True  # mirrors gate > 0: a forward pass may not branch on a tensor

    def open_gate(self, value: float) -> None:
        super().open_gate(value)
        self.is_open = value > 0

    def gradient_floor(self) -> float:
        return 1.0 if self.is_open else 0.0


class SoftThreshold(Gated):
    """sign(w) * relu(|w| - g(s)) with a learned s for the layer or each channel, or a shared unlearned one.

    `power` and `rescale_dim` change the values, not the gradients: see `functional.shaped_threshold`. With `rows` above 1 that
    many consecutive output channels share their zeros, by the norm over them.
    """

    threshold: Tensor

    counts_only_wide = True
    power: float = 1.0
    rescale_dim: int | None = None
    rows: int = 1
    channel_dim: int = 0

    def __init__(self, weight: Tensor, shape: tuple[int, ...], function: str, learned: bool, backward_sparsity: float) -> None:
        super().__init__(weight)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        start = torch.zeros(shape, dtype=dtype, device=weight.device)
        if learned:
            self.threshold = nn.Parameter(start)
        else:
            self.register_buffer("threshold", start)
        self._counted = (-1, -1, 0)  # versions of weight and threshold, and their active weights
        self.function = function
        self._outside_backward = int(backward_sparsity * weight.numel())  # floor(b n) weights receive nothing while pruned
        self._backward_density = 1 - self._outside_backward / max(1, weight.numel())
        self.reach: Tensor | None
        self.register_buffer("reach", torch.zeros(1, dtype=dtype, device=weight.device) if backward_sparsity else None)

    def forward(self, weight: Tensor) -> Tensor:
        buffers: Any = self._buffers  # past nn.Module, whose lookups take long
        s, gate, reach = self._stored_threshold(), buffers["gate"], buffers["reach"]
        if self.rows > 1:
            value, group = functional.threshold_value(s, self.function), (self.rows, self.channel_dim)
            return functional.shared_threshold(weight, value, gate, reach, *group, self.power, self.rescale_dim)
        if self.power != 1 or self.rescale_dim is not None:
            value = functional.threshold_value(s, self.function)
            return functional.shaped_threshold(weight, value, gate, reach, self.power, self.rescale_dim)
        effective, count = functional.learned_soft_threshold(weight, s, self.function, gate, reach)
        # a tied embedding gives some rows of the parameter; what was made in inference mode has no version
        if count is not None and type(weight) is nn.Parameter and s.dtype not in NARROW and not weight.is_inference():
            vars(self)["_counted"] = weight._version, s._version, count  # past nn.Module, whose assignments take long
        return effective

    @property
    def is_learned(self) -> bool:
        return isinstance(self.threshold, nn.Parameter)

    def cached_count(self, weight: Tensor) -> int | None:
        weight_version, threshold_version, count = self._counted
        is_same = weight_version == weight._version and threshold_version == self._stored_threshold()._version
        return count if is_same else None

    def _stored_threshold(self) -> Tensor:
        learned = self._parameters.get("threshold")
        return self.threshold if learned is None else learned

    def threshold_values(self) -> Tensor:
        return functional.threshold_value(whole(self.threshold.detach()), self.function)

    def magnitudes(self, weight: Tensor) -> Tensor:
        """What the threshold is compared with at every weight's place: |w|, or the norm over the channels that share zeros."""
        return weight.detach().abs() if self.rows == 1 else functional.shared_norm(weight.detach(), self.rows, self.channel_dim)

    def active(self, weight: Tensor) -> Tensor:
        return functional.is_active(self.magnitudes(weight) if self.rows > 1 else weight, self.threshold_values())

    def count_active(self, weight: Tensor) -> Tensor:
        if self.rows > 1:
            return torch.count_nonzero(self.active(weight))
        return functional.count_active(weight.detach(), self.threshold_values())

    def set_threshold(self, value: Tensor) -> None:
        """Set T itself; s follows."""
        assign(
            self.threshold,
            functional.threshold_inverse(value.to(self.threshold.dtype), self.function).expand(self.threshold.shape),
        )

    def start_at(self, weight: Tensor, sparsity: float) -> None:
        """Every unit that has a threshold of its own starts at this sparsity, from the k-th value of |w|."""
        channel = next((dim for dim, size in enumerate(self.threshold.shape) if size > 1), None)
        magnitudes = self.magnitudes(weight)
        if channel is None:
            self.set_threshold(start_bound(magnitudes, round(sparsity * weight.numel())))
            return
        rows = magnitudes.movedim(channel, 0).reshape(self.threshold.numel(), -1)
        values = torch.stack([start_bound(row, round(sparsity * row.numel())) for row in rows])
        self.set_threshold(values.reshape(self.threshold.shape))

    def limit_density(self, weight: Tensor, density: float) -> bool:
        magnitudes = self.magnitudes(weight)
        bound = (threshold_for if self.rows == 1 else threshold_under_ties)(magnitudes, density).to(self.threshold.dtype)
        self.set_threshold(torch.minimum(self.threshold_values(), bound))
        return True

    @property
    def gradient_entries(self) -> str:
        if not self.is_open:
            return "active"
        return "all" if self.backward_bound is None else "mask"

    def gradient_floor(self) -> float:
        return self._backward_density if self.is_open else 0.0

    def gradient_mask(self, weight: Tensor) -> Tensor:
        assert self.backward_bound is not None
        magnitudes = self.magnitudes(weight)
        bound = torch.minimum(self.threshold_values().to(weight.dtype), self.backward_bound.to(weight.dtype))
        return magnitudes >= bound

    @property
    def backward_bound(self) -> Tensor | None:
        """The magnitude below which pruned weights receive nothing; the buffer has the name that checkpoints use."""
        return self.reach

    def refresh_backward_bound(self, weight: Tensor) -> None:
        """Let the top-B set have n - floor(b * n) weights."""
        if self.backward_bound is not None:
            bound = kth_smallest(self.magnitudes(weight), self._outside_backward + 1)
            assign(self.backward_bound, bound.to(self.backward_bound.dtype).reshape(1))


class Masked(Gated):
    """w * mask with a mask that the method sets; pruned weights receive gate * G, inside `receives` if the method has one."""

    mask: Tensor

    def __init__(self, weight: Tensor, restricts_gradient: bool = False) -> None:
        super().__init__(weight)
        # in the weight's memory format: elementwise work on mixed formats is many times slower
        self.register_buffer("mask", torch.ones_like(weight, dtype=torch.bool, requires_grad=False))
        self.receives: Tensor | None
        self.register_buffer("receives", self.mask.clone() if restricts_gradient else None)
        self._counted: tuple[Tensor, int, int] | None = None  # a mask, its version, and its active weights
        self.zeros_last: bool | None = None  # whether pruned weights stay zero over a step; None: not tried

    def forward(self, weight: Tensor) -> Tensor:
        gate = self.gate if self.is_open else None
        effective, strays = functional.counted_gated_mask(weight, self.mask, gate, self.receives)
        if strays and self.zeros_last:
            vars(self)["zeros_last"] = False  # past nn.Module, whose assignments take long
        return effective

    def cached_count(self, weight: Tensor) -> int | None:
        mask = self.mask
        if not mask.is_cpu:  # any other device would have to wait for the number
            return None
        if self._counted is None or self._counted[0] is not mask or self._counted[1] != mask._version:
            self._counted = mask, mask._version, int(torch.count_nonzero(mask))
        return self._counted[2]

    @property
    def gradient_entries(self) -> str:
        # never "active": a weight that has just grown is 0 and needs its gradient
        return "all" if self.is_open and self.receives is None else "mask"

    def gradient_mask(self, weight: Tensor) -> Tensor:
        return self.mask | self.receives if self.is_open and self.receives is not None else self.mask

    def active(self, weight: Tensor) -> Tensor:
        return self.mask
