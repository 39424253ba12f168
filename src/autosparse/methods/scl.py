"""SCL: a mask variable for every weight behind a unit step with an identity STE, and a decaying penalty on connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from autosparse import schedules
from autosparse.layer import Layer
from autosparse.methods.families.base import About, dense_like, require
from autosparse.methods.families.learned_mask import LearnedMask, learned_tensor, parts, straight_through
from autosparse.parametrizations import SparseParametrization

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


class Connected(SparseParametrization):
    """v * 1{m >= 0}; the mask variable receives G * v."""

    def __init__(self, weight: Tensor, m_init: float) -> None:
        super().__init__(weight)
        self.score = learned_tensor(weight, weight.shape, m_init)

    def connections(self) -> Tensor:
        return straight_through(self.score, self.score >= 0)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.connections().to(weight.dtype)

    def active(self, weight: Tensor) -> Tensor:
        return (self.score.detach() >= 0) & (weight != 0)


@dataclass(frozen=True, kw_only=True)
class SCL(LearnedMask):
    """Connections are learned by gradient, against a price on each that falls over training."""

    about: ClassVar[About] = About(
        name="scl",
        year=2022,
        family="learned during training",
        budget="learned",
        pruned_gradient="none (their mask variables receive G w)",
        train_flops="2 f_S + f_D",
        reference="Tang et al., Automatic Sparse Connectivity Learning for Neural Networks, arXiv 2201.05020",
        doc="One mask variable a weight with an identity STE; the share of connections is part of the loss.",
    )

    penalty_weight: float = 0.1
    schedule: str = "cosine"
    m_init: float = 0.1
    normalize: bool = True

    def __post_init__(self) -> None:
        require(self.penalty_weight >= 0, f"penalty_weight = {self.penalty_weight}; it must be at least 0")
        require(self.m_init >= 0, f"m_init = {self.m_init}; it must be at least 0, or every weight starts pruned")
        schedules.annealing(self.schedule, 0, 1)

    def price(self, run: Sparsifier) -> float:
        """lambda_t of the present epoch."""
        return self.penalty_weight * schedules.annealing(self.schedule, run.epoch, run.epochs)

    def parametrization(self, layer: Layer, run: Sparsifier) -> Connected:
        return Connected(layer.stored, self.m_init)

    def start(self, run: Sparsifier) -> None:
        for _, part in parts(run, Connected):
            part.score.data.fill_(self.m_init)

    def penalty(self, run: Sparsifier) -> Tensor:
        connections = torch.stack([part.connections().sum() for _, part in parts(run, Connected)]).sum()
        return self.price(run) / sum(layer.numel for layer in run.layers) * connections

    def before_step(self, run: Sparsifier) -> bool:
        # Here and not in backward: the gradient of the whole step, whatever was accumulated, scaled or averaged over ranks.
        if self.normalize:
            for layer, part in parts(run, Connected):
                if part.score.grad is not None:
                    _normalize(part.score.grad, layer.channel_dim, run.gradient_scale())
        return False

    def learned_decay(self, weight_decay: float | None) -> float | None:
        return 0.0

    def passes(self, density: Tensor, run: Sparsifier) -> tuple[Tensor, Tensor, Tensor]:
        return density, density, dense_like(density)


def _normalize(gradient: Tensor, channel_dim: int, scale: float) -> None:
    """Give every output feature's gradient an L2 norm of 1 (times what a fused optimizer will divide by)."""
    others = [dim for dim in range(gradient.dim()) if dim != channel_dim]
    norms = torch.linalg.vector_norm(gradient, dim=others, keepdim=True) if others else gradient.abs()
    gradient.div_(norms.clamp_min(1e-12)).mul_(scale)
