"""Shared by methods that rank all weights and keep the best: exact selection, saliencies over batches, a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autosparse.common.modes import same_mode_after
from autosparse.common.ranks import ranks
from autosparse.common.tensors import top_mask
from autosparse.common.warnings import warn
from autosparse.common.words import few
from autosparse.cost.recorder import has_compiled_parts
from autosparse.distributions import counts
from autosparse.methods.families.base import Method, Run, dead_layers, require, require_sparsity
from autosparse.methods.families.budget import count_of_all, top_of_all
from autosparse.methods.families.fixed_mask import FixedMask, set_mask

SCOPES = ("global", "layer")
PRUNED = float("-inf")  # the score of a weight that must not come back

Scores = dict[str, Tensor]
LossFunction = Callable[[nn.Module, Any], Tensor]
Item = TypeVar("Item")


def select(scores: Mapping[str, Tensor], sparsity: float, scope: str) -> dict[str, Tensor]:
    """Masks of the highest scores, exact counts: over all layers together, or in every layer by itself. Ties by index."""
    broken = [name for name, score in scores.items() if bool((score.isnan() | (score == float("inf"))).any())]
    if broken:
        raise RuntimeError(f"the scores of {', '.join(broken[:5])} are not finite: look at the loss and the weights")
    if scope == "layer":
        budget = counts({name: score.shape for name, score in scores.items()}, dict.fromkeys(scores, sparsity))
        return {name: top_mask(score, budget[name]) for name, score in scores.items()}
    values = list(scores.values())
    return dict(zip(scores, top_of_all(values, count_of_all(values, sparsity)), strict=True))


def summed_gradients(
    sp: Run, batches: Iterable[Any], loss_fn: LossFunction, text: str, along: Scores | None = None
) -> tuple[Scores, int]:
    """Summed over batches and ranks: the gradient of every layer's weight, or Hessian times `along`; and the batches seen."""
    weights = [layer.stored for layer in sp.layers]
    sums = [torch.zeros_like(weight, requires_grad=False) for weight in weights]
    count = 0
    for batch in progress(batches, text):
        count += 1
        loss = loss_fn(sp.model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            returned = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss_fn(model, batch) must return one number as a tensor, it returned {returned}")
        gradients = torch.autograd.grad(loss, weights, create_graph=along is not None, materialize_grads=True)
        if along is not None:
            product = torch.stack([(g * along[layer.name]).sum() for g, layer in zip(gradients, sp.layers, strict=True)]).sum()
            if not product.requires_grad:  # a loss that is linear in the weights has no curvature
                continue
            gradients = torch.autograd.grad(product, weights, materialize_grads=True)
        for total, value in zip(sums, gradients, strict=True):
            total += value.detach()
    require(count > 0, "batches is empty: scoring needs at least one batch")
    return over_ranks({layer.name: total for layer, total in zip(sp.layers, sums, strict=True)}), count


def over_ranks(scores: Scores) -> Scores:
    """The sum over all processes, so that every rank chooses the same mask."""
    if ranks() > 1:
        for score in scores.values():
            dist.all_reduce(score)
    return scores


def progress(items: Iterable[Item], text: str) -> Iterable[Item]:
    """The items, with a progress bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    total = len(items) if isinstance(items, Sized) else None
    return track(items, text, total=total, console=Console(stderr=True), transient=True)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Batch-norm statistics, other buffers and training flags are afterwards what they were before."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with same_mode_after(model):
            yield
    finally:
        for buffer, value in buffers:
            buffer.copy_(value)


@dataclass(frozen=True, kw_only=True)
class RankedMask(Method):
    """A mask of the highest scores of the whole net or of every layer."""

    scopes: ClassVar[tuple[str, ...]] = SCOPES

    scope: str = "global"
    dense_first: bool = False
    dense_last: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.scope in self.scopes, f"scope = {self.scope!r}; allowed: {', '.join(self.scopes)}")

    def apply(self, sp: Run, masks: Mapping[str, Tensor]) -> None:
        """Set the masks and say so if a layer has lost all its weights."""
        for layer in sp.layers:
            set_mask(sp, layer, masks[layer.name])
        dead = dead_layers(sp)
        if dead:
            warn(
                f"{self.about.name} left no weight in {few(dead)}: the net may be "
                "cut in two there. Lower the sparsity, exclude these layers, or use scope='layer'."
            )


@dataclass(frozen=True, kw_only=True)
class ScoredOnce(Method):
    """For a FixedMask: it is chosen once, before training, from what `sp.score(batches, loss_fn)` sees."""

    def start(self, sp: Run) -> None:
        super().start(sp)
        sp.memory["scored"] = False

    def before_step(self, sp: Run) -> bool:
        if not sp.memory.get("scored"):
            raise RuntimeError(f"{self.about.name} chooses its mask before training: call sp.score(batches, loss_fn) first")
        return False

    def score(self, sp: Run, batches: Iterable[Any], loss_fn: LossFunction | None) -> None:
        if sp.memory.get("scored") or sp.step:
            raise RuntimeError(
                f"{self.about.name} has chosen its mask already and pruned weights are 0 now: "
                "to score again, load the dense weights with sp.load_dense(state_dict) before the first step"
            )
        if isinstance(batches, Tensor | Mapping) or not isinstance(batches, Iterable):
            raise TypeError(
                f"batches must be an iterable of batches such as a DataLoader or a list, got {type(batches).__name__}"
            )
        # compiled code has no second derivative, and would be recompiled for the few batches of scoring
        eager = torch.compiler.set_stance("force_eager") if has_compiled_parts(sp.model) else nullcontext()
        with undisturbed(sp.model), eager:
            masks = self.choose(sp, batches, loss_fn)
        self.apply(sp, masks)
        sp.memory["scored"] = True

    def choose(self, sp: Run, batches: Iterable[Any], loss_fn: LossFunction | None) -> dict[str, Tensor]:
        """The masks, by layer."""
        raise NotImplementedError

    def apply(self, sp: Run, masks: Mapping[str, Tensor]) -> None:
        """Set the masks."""
        for layer in sp.layers:
            set_mask(sp, layer, masks[layer.name])


@dataclass(frozen=True, kw_only=True)
class ScoredMask(RankedMask, ScoredOnce, FixedMask):
    """A mask of the highest scores, chosen once."""

    sparsity: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sparsity("sparsity", self.sparsity)

    def saliency(self, sp: Run, batches: Iterable[Any], loss_fn: LossFunction | None) -> Scores:
        """A score for every weight, by layer; the highest stay."""
        raise NotImplementedError

    def choose(self, sp: Run, batches: Iterable[Any], loss_fn: LossFunction | None) -> dict[str, Tensor]:
        return select(self.saliency(sp, batches, loss_fn), self.sparsity, self.scope)


def required(loss_fn: LossFunction | None, method: str) -> LossFunction:
    """The loss function, or an error where it is missing."""
    if loss_fn is None:
        raise TypeError(f"{method} needs loss_fn(model, batch) -> loss")
    return loss_fn
