"""A given sparsity, spread over the layers: counts of active weights, masks that start at random and are renewed in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from autosparse.common.tensors import top_mask
from autosparse.common.warnings import warn
from autosparse.distributions import DISTRIBUTIONS, counts, distribute
from autosparse.layer import Layer
from autosparse.methods.families.base import Method, Run, Traits, first_and_last, require, require_sparsity
from autosparse.methods.families.fixed_mask import hold_zeros, random_mask, set_mask

GLOBAL = "global"  # one ranking over all layers
ENDS_INSIDE = ("er", "erk")  # here dense ends are layers of the run, with a full mask


@dataclass(frozen=True, kw_only=True)
class Budgeted(Method):
    """A sparsity for each layer. Masks start at random, pruned weights are stored as zeros, `renew` changes masks when `due`.

    dense_first None is RigL's convention: the first layer is dense under "uniform", sparse under "er" and "erk".
    Dense ends lie outside the budget, and are left out of the run, except under "er" and "erk".
    """

    allocations: ClassVar[tuple[str, ...]] = DISTRIBUTIONS
    stores_zeros: ClassVar[bool] = True
    when: ClassVar[str] = "after"  # the optimizer's step; an update "before" takes its place

    sparsity: float = 0.9
    distribution: str = "uniform"
    dense_first: bool | None = None
    dense_last: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sparsity("sparsity", self.sparsity)
        allowed = ", ".join(self.allocations)
        require(self.distribution in self.allocations, f"distribution = {self.distribution!r}; allowed: {allowed}")

    @property
    def traits(self) -> Traits:
        return replace(super().traits, dense_ends=(False, False) if self.distribution in ENDS_INSIDE else self._ends)

    @property
    def _ends(self) -> tuple[bool, bool]:
        first = self.distribution == "uniform" if self.dense_first is None else self.dense_first
        return first, self.dense_last

    def dense_inside(self, sp: Run) -> list[str]:
        """Names of the run's layers that stay dense by convention; they do not count towards the budget."""
        return first_and_last(sp.layer_order, *self._ends) if self.distribution in ENDS_INSIDE else []

    def sparse_layers(self, sp: Run) -> list[Layer]:
        dense = self.dense_inside(sp)
        return [layer for layer in sp.layers if layer.name not in dense]

    def check(self, sp: Run) -> None:
        super().check(sp)
        self.finals(sp, self.sparsity)

    def finals(self, sp: Run, sparsity: float) -> dict[str, float]:
        """The sparsity at which every layer ends; under "global" the overall one stands for each."""
        shapes = {layer.name: tuple(layer.shape) for layer in sp.layers}
        if self.distribution == GLOBAL:
            return dict.fromkeys(shapes, sparsity)
        return distribute(self.distribution, shapes, sparsity, self.dense_inside(sp))

    def now(self, final: float, sp: Run) -> float:
        """The present sparsity of what ends at `final`."""
        return final

    def budget(self, sp: Run, sparsity: float | None = None) -> dict[str, int]:
        """Active weights of every layer at present, for the method's sparsity or another one."""
        finals = self.finals(sp, self.sparsity if sparsity is None else sparsity)
        shapes = {layer.name: tuple(layer.shape) for layer in sp.layers}
        return counts(shapes, {name: self.now(final, sp) for name, final in finals.items()})

    def start_budget(self, sp: Run) -> dict[str, int]:
        """Active weights of every layer at the start."""
        return self.budget(sp)

    def start(self, sp: Run) -> None:
        # From the same point of the generator every time: loading a dense checkpoint does not change the masks.
        sp.generator.set_state(sp.memory.setdefault("generator_at_start", sp.generator.get_state()))
        budget = self.start_budget(sp)
        for layer in sp.layers:
            set_mask(sp, layer, random_mask(layer, budget[layer.name], sp.generator))

    def at_target(self, sp: Run) -> bool:
        return all(self.now(final, sp) == final for final in self.finals(sp, self.sparsity).values())

    def due(self, sp: Run) -> bool:
        """Whether the masks change at step sp.step."""
        return False

    def renew(self, sp: Run) -> None:
        """Change the masks of all layers."""
        raise NotImplementedError

    def before_step(self, sp: Run) -> bool:
        takes_step = self.when == "before" and self.due(sp)
        if takes_step:
            self.renew(sp)
        return takes_step

    def after_step(self, sp: Run) -> None:
        renews = self.when == "after" and self.due(sp)
        if self.stores_zeros:
            hold_zeros(sp, everywhere=renews)
        if renews:
            self.renew(sp)


def require_start(start_sparsity: float, sparsity: float) -> None:
    allowed = f"allowed: from 0 to the sparsity of {sparsity}"
    require(0 <= start_sparsity <= sparsity, f"start_sparsity = {start_sparsity}; {allowed}")


def warn_if_never_due(method: Method, field: str, value: int, most: int) -> None:
    """Say at the start that the run ends before the first regular update; `most` is the largest value that it has room for."""
    if value > most:
        remedy = f"set {field} to at most {most}" if most >= 1 else "train for more steps"
        warn(f"{method.about.name} makes no regular update of its masks in this run: {field} is {value}; {remedy}")


def top_of_all(scores: Sequence[Tensor], count: int, keep_one: bool = False) -> list[Tensor]:
    """Masks of the `count` highest scores of all tensors together, ties by index; `keep_one` of each at least."""
    flat = [score.reshape(-1).to(scores[0].device) for score in scores]
    if keep_one:
        flat = [score.index_fill(0, score.argmax(), torch.inf) for score in flat]
    masks = torch.split(top_mask(torch.cat(flat), count), [score.numel() for score in scores])
    return [mask.reshape(score.shape).to(score.device) for mask, score in zip(masks, scores, strict=True)]


def count_of_all(scores: Sequence[Tensor], sparsity: float) -> int:
    """How many scores stay at an overall sparsity."""
    return counts({"all": (sum(score.numel() for score in scores),)}, {"all": sparsity})["all"]
