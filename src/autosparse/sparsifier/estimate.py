"""Would zeros pay for a model? Answered before training, from steps and layers timed on this machine."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.common.tables import Table
from autosparse.common.turns import clock_for, take_turns
from autosparse.common.warnings import SparsityWarning
from autosparse.cost.count import samples_in, tensors_in
from autosparse.cost.recorder import ExampleInput, call_arguments
from autosparse.methods import AutoSparse
from autosparse.sparsifier.sparsifier import Sparsifier, sparsify

WARM_UP = 3  # the planner measures in the first step
MOST_ROUNDS, LEAST_ROUNDS, ENOUGH_SECONDS = 25, 5, 1.0


@dataclass(frozen=True)
class LayerEstimate:
    """One layer: milliseconds of its passes in a step, dense and as it would run, where they were measured."""

    name: str
    kind: str
    weights: int
    dense_milliseconds: float | None
    milliseconds: float | None
    computed: str

    @property
    def skips_zeros(self) -> bool:
        return not self.computed.startswith("dense")


@dataclass(frozen=True)
class Estimate:
    """A whole training step, plain and with zeros, both measured, and its layers; prints as a table."""

    sparsity: float
    samples: int
    threads: int
    dense_milliseconds: float
    milliseconds: float
    layers: tuple[LayerEstimate, ...]

    @property
    def speedup(self) -> float:
        """How many times as fast the step with zeros is; below 1 it is slower."""
        return self.dense_milliseconds / self.milliseconds

    @property
    def pays(self) -> bool:
        return self.speedup > 1

    def __str__(self) -> str:
        skipping = sum(layer.skips_zeros for layer in self.layers)
        verdict = "it pays" if self.pays else "it does not pay in time"
        return Table(
            headings=("layer", "kind", "weights", "dense ms", "ms", "computed"),
            rows=[
                (layer.name, layer.kind, layer.weights, *_shown(layer.dense_milliseconds, layer.milliseconds), layer.computed)
                for layer in self.layers
            ],
            totals=("step", "", "", *_shown(self.dense_milliseconds, self.milliseconds), f"{self.speedup:.2f} times as fast"),
            title=f"a training step with {self.sparsity:.0%} zeros, {self.samples} samples, threads: {self.threads}",
            notes=[f"{verdict}: {skipping} of {len(self.layers)} layers skip zeros"],
        ).text()


def _shown(*milliseconds: float | None) -> list[str]:
    return ["-" if each is None else f"{each:.2f}" for each in milliseconds]


def estimate(
    model: nn.Module, example_input: ExampleInput, sparsity: float = 0.9, include: Any = None, exclude: Any = None
) -> Estimate:
    """Would zeros pay for this model on this machine? Times training steps of two copies, one dense and one with zeros.

    `example_input` is a training batch: a tensor, a tuple of positional inputs or a dict of keyword inputs. The model is
    not changed. Pruned weights receive no gradient, as at the end of a run; while they do, less is gained.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"estimate needs a torch.nn.Module, not {type(model).__name__}")
    if not 0 < sparsity < 1:
        raise ValueError(f"sparsity = {sparsity}; it is the fraction of zeros: 0 < sparsity < 1")
    args, kwargs = call_arguments(example_input)
    plain, sparse = copy.deepcopy(model).train(), copy.deepcopy(model).train()
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore", category=SparsityWarning):  # of a run that is none
        method = AutoSparse(alpha=0.0, schedule="constant", start_sparsity=sparsity)
        sp = sparsify(sparse, method, epochs=1, steps_per_epoch=10**6, include=include, exclude=exclude, guard=None)
        dense_step, step = (_step_of(each, args, kwargs, of) for each, of in ((plain, None), (sparse, sp)))
        for _ in range(WARM_UP):
            dense_step()
            step()
        calls = {"dense": dense_step, "sparse": step}
        clock = clock_for(torch.get_num_threads())
        seconds = take_turns(calls, MOST_ROUNDS, clock=clock, least_rounds=LEAST_ROUNDS, enough_seconds=ENOUGH_SECONDS)
    times = {side: 1e3 * median(each) for side, each in seconds.items()}
    samples = samples_in([*args, *kwargs.values()])
    return Estimate(sparsity, samples, torch.get_num_threads(), times["dense"], times["sparse"], _layers(sp))


def _layers(sp: Sparsifier) -> tuple[LayerEstimate, ...]:
    def milliseconds(seconds: float | None) -> float | None:
        return None if seconds is None else 1e3 * seconds

    return tuple(
        LayerEstimate(
            plan.name, layer.kind, layer.numel, milliseconds(plan.dense_seconds), milliseconds(plan.seconds), str(plan)
        )
        for layer, plan in zip(sp.layers, sp.layer_plans(), strict=True)
    )


def _step_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], sp: Sparsifier | None) -> Callable[[], None]:
    """A whole training step that moves no weight."""
    groups: Any = model.parameters() if sp is None else sp.param_groups()
    optimizer = torch.optim.SGD(groups, lr=0.0, momentum=0.9)
    if sp is not None:
        sp.bind(optimizer)
    return partial(_take_step, model, args, kwargs, optimizer)


def _take_step(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss_of(model(*args, **kwargs)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def loss_of(output: Any) -> Tensor:
    """A number to differentiate, whatever a model gives: the mean square of all that has a gradient."""
    parts = [tensor.float().square().mean() for tensor in tensors_in(output) if tensor.requires_grad]
    if not parts:
        raise ValueError(f"the model's output, a {type(output).__name__}, holds no tensor with a gradient")
    return torch.stack(parts).sum()
