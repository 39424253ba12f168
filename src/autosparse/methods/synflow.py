"""SynFlow: data-free, iterative pruning before training that conserves synaptic flow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from autosparse.methods.families.base import About, Run, require
from autosparse.methods.families.scored import PRUNED, LossFunction, ScoredMask, Scores, over_ranks, progress, select
from autosparse.methods.registry import register


@register
class SynFlow(ScoredMask):
    """A fixed mask from 100 rounds of scoring without data: round k keeps density^(k/100).

    Keeps the weights that carry most flow: |w * dR/dw|, R the summed output of |model| for an input of ones.
    """

    about = About(
        name="synflow",
        year=2020,
        family="before training",
        pruned_gradient="none",
        train_flops="3 f_S, and 3 f_D for one sample per scoring round",
        reference="Tanaka et al., Pruning Neural Networks without Any Data by Conserving Synaptic Flow, NeurIPS 2020",
    )

    rounds: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rounds >= 1, f"rounds = {self.rounds}; it must be at least 1")

    def saliency(self, sp: Run, batches: Iterable[Any], loss_fn: LossFunction | None) -> Scores:
        first = next(iter(batches), None)
        if first is None:
            raise ValueError("batches is empty: synflow reads the shape of the first batch's input")
        device = sp.layers[0].stored.device
        args, kwargs, samples = _ones(first, device)
        sp.ledger.add_dense_steps(math.ceil(self.rounds / samples))  # one sample per round
        sp.model.eval()
        masks = {layer.name: torch.ones_like(layer.stored, dtype=torch.bool) for layer in sp.layers}
        scores: Scores = {}
        for finished in progress(range(self.rounds), "SynFlow"):
            if finished:
                masks = select(scores, 1 - (1 - self.sparsity) ** (finished / self.rounds), self.scope)
            flow = over_ranks(_flow(sp, masks, args, kwargs))
            scores = {name: score.masked_fill_(~masks[name], PRUNED) for name, score in flow.items()}
        return scores


def _flow(sp: Run, masks: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scores:
    """|w * dR/dw| of the masked net with all parameters and buffers made positive, in float64; the model is not touched."""
    names = {parameter: name for name, parameter in sp.model.named_parameters()}
    originals = {**dict(sp.model.named_parameters()), **dict(sp.model.named_buffers())}
    tensors = {name: value.detach().abs().double() for name, value in originals.items() if value.is_floating_point()}
    weights = {}
    for layer in sp.layers:
        positive = (tensors[names[layer.stored]] * masks[layer.name]).requires_grad_()  # type: ignore[index]
        tensors[names[layer.stored]] = weights[layer.name] = positive  # type: ignore[index]
    with torch.enable_grad():
        total = _total(functional_call(sp.model, tensors, args, kwargs))
    gradients = torch.autograd.grad(total, list(weights.values()), materialize_grads=True)
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: (weight.detach() * gradient).abs() for (name, weight), gradient in pairs}


def _ones(batch: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    """One sample of ones in the shape of the batch's input, and how many samples the batch has."""
    value = batch[0] if isinstance(batch, tuple | list) else batch
    args = tuple(value) if isinstance(value, tuple | list) else () if isinstance(value, Mapping) else (value,)
    kwargs = dict(value) if isinstance(value, Mapping) else {}
    inputs = [item for item in (*args, *kwargs.values()) if isinstance(item, Tensor)]
    if not inputs or not inputs[0].ndim or not len(inputs[0]):
        raise TypeError(
            f"synflow cannot read an input shape from a batch of type {type(batch).__name__}: a batch is a tensor, a tuple "
            "(input, target), a tuple ((input, input), target) or a dict of keyword inputs"
        )

    def one(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return item
        dtype = torch.float64 if item.is_floating_point() else item.dtype
        return torch.ones((1, *item.shape[1:]), dtype=dtype, device=device)

    return tuple(map(one, args)), {key: one(item) for key, item in kwargs.items()}, len(inputs[0])


def _total(output: Any) -> Tensor:
    """R: the sum of all outputs."""
    if isinstance(output, Tensor):
        return output.sum()
    values = output.values() if isinstance(output, Mapping) else output
    if not isinstance(values, Iterable):
        raise TypeError(f"synflow sums the model's output, and cannot sum a {type(output).__name__}")
    return torch.stack([_total(value) for value in values if value is not None]).sum()
