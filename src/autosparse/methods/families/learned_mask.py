"""What methods with learned masks share: tensors of their own, a straight-through mask, a soft mask that becomes hard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.functional import as_numbers
from autosparse.layer import Layer
from autosparse.methods.families.base import Run, layer_parts
from autosparse.parametrizations import SparseParametrization


def learned_tensor(weight: Tensor, shape: Sequence[int], value: float) -> nn.Parameter:
    """A learned tensor of a layer, in at least float32 whatever the weight is: its steps are small."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    if tuple(shape) == tuple(weight.shape):  # in the weight's memory format
        return nn.Parameter(torch.full_like(weight, value, dtype=dtype, requires_grad=False))
    return nn.Parameter(torch.full(tuple(shape), value, dtype=dtype, device=weight.device))


def per_channel(layer: Layer) -> tuple[int, ...]:
    """The shape of one value per output channel."""
    return tuple(size if dim == layer.channel_dim else 1 for dim, size in enumerate(layer.shape))


def straight_through(score: Tensor, mask: Tensor) -> Tensor:
    """The mask in the forward pass; the score receives the mask's gradient unchanged (identity STE)."""
    forward: Tensor = _StraightThrough.apply(score, mask)  # type: ignore[no-untyped-call]
    return forward


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(score: Tensor, mask: Tensor) -> Tensor:
        return mask.to(score.dtype, copy=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class SoftMask(SparseParametrization):
    """A mask between 0 and 1 while it is learned, exactly 0 or 1 (and fixed) from `harden` on."""

    hard: Tensor
    mask: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        # Tensors, so that forward has no branch in Python: compiled graphs stay valid when the mask becomes hard.
        self.register_buffer("hard", torch.zeros(1, dtype=torch.bool, device=weight.device))
        self.register_buffer("mask", torch.ones_like(weight, dtype=torch.bool, requires_grad=False))

    def survivors(self, weight: Tensor) -> Tensor:
        """Where a weight would stay if the mask became hard now."""
        raise NotImplementedError

    def choose(self, soft: Tensor) -> Tensor:
        """The soft mask, or the hard one once there is one."""
        return torch.lerp(soft, as_numbers(self.mask, soft.dtype), self.hard.to(soft.dtype))

    def active(self, weight: Tensor) -> Tensor:
        return torch.where(self.hard, self.mask, self.survivors(weight)) & (weight != 0)

    def soften(self) -> None:
        self.hard.fill_(False)

    def harden(self, weight: Tensor) -> None:
        """Fix the mask; a second call changes nothing."""
        self.mask.copy_(torch.where(self.hard, self.mask, self.survivors(weight)))
        self.hard.fill_(True)


def harden(sp: Run) -> None:
    """Make the soft masks of all layers hard."""
    for layer, soft in layer_parts(sp, SoftMask):
        soft.harden(layer.weight())
