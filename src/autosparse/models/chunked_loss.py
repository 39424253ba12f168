"""Cross-entropy over a large vocabulary, a chunk of tokens at a time: only one chunk's logits and gradients are ever there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils import parametrize

from autosparse.common.gradient_sums import sum_gradients_of

# Enough tokens to fill a matrix product's tiles; each further chunk costs a pass over the weight's gradient.
CHUNK = 256
# Tokens whose probabilities are made together: few enough for the caches.
CHUNK_PART = 64


def chunked_cross_entropy(
    hidden: Tensor,
    layer: nn.Linear,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    chunk: int = CHUNK,
) -> Tensor:
    """F.cross_entropy(layer(hidden), targets, ...) for hidden (..., size) and targets (...), without all logits at once.

    Gradients are made along with the loss, chunk by chunk, by the layer's own forward: backward can run once.
    """
    if hidden.shape[:-1] != targets.shape:
        raise ValueError(f"hidden {tuple(hidden.shape)} needs targets {tuple(hidden.shape[:-1])}, got {tuple(targets.shape)}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction {reduction!r}; allowed: mean, sum")
    if chunk < 1:
        raise ValueError(f"chunk = {chunk}; give 1 or more tokens")
    states, wanted = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    kept = wanted != ignore_index
    with parametrize.cached():  # a parametrized weight is made once, not for every chunk
        weight, bias = layer.weight, layer.bias
        with sum_gradients_of(weight) as of_sparse_layers:
            summed, gradients = _by_chunks(states, layer, wanted, kept, label_smoothing, chunk, [weight, bias])
    total: Tensor = summed
    if gradients:
        gradients[1] = _add(gradients[1], of_sparse_layers.total)
        inputs = [each for each in (states, weight, bias) if each is not None]
        total = _WithGradients.apply(summed, gradients, *inputs)  # type: ignore[no-untyped-call]
    return total / kept.sum() if reduction == "mean" else total


def _by_chunks(
    states: Tensor,
    layer: nn.Linear,
    targets: Tensor,
    kept: Tensor,
    smoothing: float,
    chunk: int,
    parameters: list[Tensor | None],
) -> tuple[Tensor, list[Tensor | None]]:
    """The summed loss, and its gradients with respect to states, weight and bias where they are asked for."""
    total = torch.zeros((), dtype=torch.promote_types(states.dtype, torch.float32), device=states.device)
    given = [each for each in parameters if each is not None]
    sums: list[Tensor | None] = [None] * len(given)
    wanted = torch.is_grad_enabled()
    for_states = torch.empty_like(states) if wanted and states.requires_grad else None
    for start in range(0, len(states), chunk):
        rows = slice(start, start + chunk)
        piece = states[rows].detach().requires_grad_(wanted and states.requires_grad)
        logits = layer(piece)
        with torch.no_grad():
            gradient = logits.detach()  # in the memory of the logits, which nothing needs any more
            pieces = (each.split(CHUNK_PART) for each in (gradient, targets[rows], kept[rows]))
            for part, wanted_part, kept_part in zip(*pieces, strict=True):
                total += _loss(part, wanted_part, kept_part, smoothing)
        needed = [each for each in (piece, *given) if each.requires_grad]
        if not wanted or not needed:
            continue
        gradients = iter(torch.autograd.grad(logits, needed, gradient, allow_unused=True))
        del logits, gradient
        if for_states is not None:
            for_states[rows] = next(gradients)
        for place, each in enumerate(given):
            if each.requires_grad:
                sums[place] = _add(sums[place], next(gradients))
    return total, [for_states, *sums] if wanted else []


def _add(known: Tensor | None, more: Tensor | None) -> Tensor | None:
    return more if known is None else known if more is None else known.add_(more)


def _loss(logits: Tensor, targets: Tensor, kept: Tensor, smoothing: float) -> Tensor:
    """The summed loss of some tokens; its gradient with respect to their logits takes the place of these."""
    logs = F.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    places = torch.where(kept, targets, 0).unsqueeze(1)
    counts = kept.to(logs.dtype).unsqueeze(1)
    loss = -(1 - smoothing) * (logs.gather(1, places) * counts).sum()
    if smoothing:
        loss = loss - smoothing * (logs.mean(dim=1, keepdim=True) * counts).sum()
    gradient = logs.exp_()
    if smoothing:
        gradient -= smoothing / logits.shape[1]
    gradient.scatter_add_(1, places, torch.full_like(counts, smoothing - 1))
    if not bool(kept.all()):
        gradient *= counts
    logits.copy_(gradient)
    return loss


class _WithGradients(torch.autograd.Function):
    """A number whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor | None], *inputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("gradients of chunked_cross_entropy are used up: compute the loss again before another backward")
        scaled = [each if each is None else each.mul_(grad) for each in ctx.gradients]
        ctx.gradients = None
        return None, None, *scaled
