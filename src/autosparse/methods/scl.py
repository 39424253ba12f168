"""SCL: a mask variable for every weight behind a unit step with an identity STE, and a decaying penalty on connections."""

from __future__ import annotations

import torch
from torch import Tensor

from autosparse import schedules
from autosparse.layer import Layer
from autosparse.methods.families.base import About, Method, Run, Traits, layer_parts, require
from autosparse.methods.families.learned_mask import learned_tensor, straight_through
from autosparse.methods.registry import register
from autosparse.parametrizations import SparseParametrization


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


@register
class SCL(Method):
    """One mask variable per weight with an identity STE; the share of connections is part of the loss.

    Connections are learned by gradient, against a price on each that falls over training.
    """

    about = About(
        name="scl",
        year=2022,
        family="learned budgets",
        pruned_gradient="none (their mask variables receive G w)",
        train_flops="2 f_S + f_D",
        reference="Tang et al., Automatic Sparse Connectivity Learning for Neural Networks, arXiv 2201.05020",
    )
    facts = Traits(learned_decay=0.0)

    penalty_weight: float = 0.1
    schedule: str = "cosine"
    m_init: float = 0.1
    normalize: bool = True
    dense_first: bool = False
    dense_last: bool = False

    def __post_init__(self) -> None:
        require(self.penalty_weight >= 0, f"penalty_weight = {self.penalty_weight}; it must be at least 0")
        require(self.m_init >= 0, f"m_init = {self.m_init}; it must be at least 0, or every weight starts pruned")
        schedules.annealing(self.schedule, 0, 1)

    def price(self, sp: Run) -> float:
        """lambda_t of the present epoch."""
        return self.penalty_weight * schedules.annealing(self.schedule, sp.epoch, sp.epochs)

    def parametrization(self, layer: Layer, sp: Run) -> Connected:
        return Connected(layer.stored, self.m_init)

    def start(self, sp: Run) -> None:
        for _, part in layer_parts(sp, Connected):
            part.score.data.fill_(self.m_init)

    def penalty(self, sp: Run) -> Tensor:
        connections = torch.stack([part.connections().sum() for _, part in layer_parts(sp, Connected)]).sum()
        return self.price(sp) / sum(layer.numel for layer in sp.layers) * connections

    def before_step(self, sp: Run) -> bool:
        # Here and not in backward: the gradient of the whole step, whatever was accumulated, scaled or averaged over ranks.
        if self.normalize:
            for layer, part in layer_parts(sp, Connected):
                if part.score.grad is not None:
                    _normalize(part.score.grad, layer.channel_dim, sp.gradient_scale())
        return False


def _normalize(gradient: Tensor, channel_dim: int, scale: float) -> None:
    """Give every output feature's gradient an L2 norm of 1 (times what a fused optimizer will divide by)."""
    others = [dim for dim in range(gradient.dim()) if dim != channel_dim]
    norms = torch.linalg.vector_norm(gradient, dim=others, keepdim=True) if others else gradient.abs()
    gradient.div_(norms.clamp_min(1e-12)).mul_(scale)
