"""The table of the generic suites: a row for every registered method. A method without a row fails test_table.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from autosparse import GradientAnnealing
from autosparse.layer import Layer

EPOCHS, STEPS = 4, 8  # of a short run, all rounds together
TOTAL = EPOCHS * STEPS
QUICK = ("autosparse", "gdp", "gmp", "rigl", "st3+ga", "swat", "topkast")  # one of each kind of parametrization
BATCH = 32
SCORED_BATCHES = 2
QUARTER = 0.75  # the sparsity of all budgets: sizes divide by four, so counts can be told by hand


@dataclass(frozen=True)
class Moment:
    """When a step happens: `step` and `epoch` are counted in the round, from 0."""

    step: int
    epoch: int
    round: int


Passes = tuple[float, float, float]
Promise = Callable[[Sequence[Layer]], list[int] | int | range]


@dataclass(frozen=True)
class Row:
    """How a method runs for a few steps, and what it promises."""

    fields: Mapping[str, Any]
    passes: Callable[[float, Moment], Passes]  # density to forward, input-gradient and weight-gradient density, by hand
    keeps: Promise | None = None  # active weights: of every layer, or of all together; None where they are learned
    throughout: bool = True  # that count holds at every step, not only at the end
    scores: bool = False
    scoring_steps: float | Mapping[str, float] = 0  # what scoring costs, in dense optimizer steps; by net where that differs
    rounds: int = 1  # trainings in a run
    epochs: int = EPOCHS  # of one round
    options: Mapping[str, Any] = field(default_factory=dict)  # of sparsify
    hard: Callable[[Layer], Tensor] = Layer.effective  # the weight that finalize leaves
    holds_zeros: bool = False  # pruned weights are stored as exact zeros, and no momentum revives them


# ------------------------------------------------------------------------------------------------------------- hand formulas


def sparse(density: float, moment: Moment) -> Passes:
    return density, density, density


def dense_weight_gradient(density: float, moment: Moment) -> Passes:
    return density, density, 1.0


def dense_gradient_until_epoch_3(density: float, moment: Moment) -> Passes:
    return density, density, 1.0 if moment.epoch < 3 else density


def half_of_the_weight_gradient(density: float, moment: Moment) -> Passes:
    return density, density, 0.5


def soft_until_epoch_3(density: float, moment: Moment) -> Passes:
    return (1.0, 1.0, 1.0) if moment.epoch < 3 else (density, density, density)


def ticket_after_search(density: float, moment: Moment) -> Passes:
    return (density, density, density) if moment.round else (1.0, 1.0, 1.0)


def dense_gradient_every_fourth_step(density: float, moment: Moment) -> Passes:
    update = moment.step in (4, 8, 12, 16, 20, 24)  # up to 3/4 of 32 steps
    return density, density, 1.0 if update else density


def dense_gradient_at_updates_of_granet(density: float, moment: Moment) -> Passes:
    update = moment.step in (4, 8, 10, 12, 16, 20, 24, 28)  # and at the end of the ramp, step 10
    return density, density, 1.0 if update else density


def quarter_each(layers: Sequence[Layer]) -> list[int]:
    return [layer.numel // 4 for layer in layers]


def quarter_of_each_row(layers: Sequence[Layer]) -> list[int]:
    return [layer.shape[0] * math.floor(math.prod(layer.shape[1:]) / 4 + 0.5) for layer in layers]


def quarter_of_all(layers: Sequence[Layer]) -> int:
    return sum(layer.numel for layer in layers) // 4


def half_by_channels(layers: Sequence[Layer]) -> range:
    """A channel is at most a quarter of a layer's rows, and of the columns of two others."""
    total = sum(layer.numel for layer in layers)
    largest = sorted(layer.numel for layer in layers)[-3:]
    return range(total // 2 - sum(largest) // 4, total // 2 + 1)


# The share of a layer's channels that GradMax grows to: those that it makes, times those that it reads.
GROWN = {
    "conv1": 0.5, "conv2": 0.25, "conv3": 0.25, "conv4": 0.25, "conv5": 0.25, "conv6": 0.25, "fc": 0.5,
    "blocks.0.feed_forward.expand": 0.5, "blocks.0.feed_forward.contract": 0.5, "1": 0.5, "3": 0.25, "5": 0.5,
}  # fmt: skip


def half_of_what_grows(layers: Sequence[Layer]) -> list[int]:
    return [int(layer.numel * GROWN.get(layer.name, 1)) for layer in layers]


def random_graph(layers: Sequence[Layer], scale: Callable[[Sequence[int]], float]) -> list[int]:
    """Density in proportion to `scale`, full layers dense, a quarter of all weights together."""
    sizes, full = [layer.numel for layer in layers], set[int]()
    while True:
        open_ = [place for place in range(len(sizes)) if place not in full]
        budget = sum(sizes) / 4 - sum(sizes[place] for place in full)
        factor = budget / sum(sizes[place] * scale(layers[place].shape) for place in open_)
        over = {place for place in open_ if factor * scale(layers[place].shape) > 1}
        if not over:
            break
        full |= over
    densities = [1.0 if place in full else factor * scale(layers[place].shape) for place in range(len(sizes))]
    return [math.floor(round(density * size, 6) + 0.5) for density, size in zip(densities, sizes, strict=True)]


def erdos_renyi(layers: Sequence[Layer]) -> list[int]:
    return random_graph(layers, lambda shape: sum(shape[:2]) / math.prod(shape[:2]))


def erdos_renyi_kernel(layers: Sequence[Layer]) -> list[int]:
    return random_graph(layers, lambda shape: sum(shape) / math.prod(shape))


def squares_above_the_threshold(layer: Layer) -> Tensor:
    part: Any = layer.parametrization
    weight = layer.weight()
    kept: Tensor = part.mask if part.hard else weight.square() / part.variance > part.threshold.detach()
    return weight * kept


def positive_logits(layer: Layer) -> Tensor:
    part: Any = layer.parametrization
    kept: Tensor = part.mask if part.hard else part.logit.detach() > 0
    return layer.weight() * (kept * (1 + math.exp(-0.01)))


# ----------------------------------------------------------------------------------------------------------------- the table

WITH_EXAMPLE = {"example_input": torch.zeros(2, 1, 8, 8)}  # for methods that follow channels
ANNEALED = GradientAnnealing(alpha=0.6, zero_epoch=3)

ROWS: dict[str, Row] = {
    "autosparse": Row({"start_sparsity": 0.5, "zero_epoch": 3}, dense_gradient_until_epoch_3),
    "str": Row({"start_sparsity": 0.5}, sparse),
    "dst": Row({"penalty_weight": 1e-3}, dense_weight_gradient),
    "optg": Row({"sparsity": QUARTER, "beta": 50.0}, dense_weight_gradient, quarter_of_all, throughout=False),
    "ltp": Row(
        {"start_sparsity": 0.3, "penalty_weight": 1e-4, "hard_epoch": 3},
        soft_until_epoch_3,
        hard=squares_above_the_threshold,
    ),
    "cs": Row(
        {"train_ticket": True, "rewind_epoch": 1, "s_init": 0.01, "penalty_weight": 1e-4},
        ticket_after_search,
        rounds=2,
        epochs=2,
        hard=positive_logits,
    ),
    # nine tenths of conv6 see only padding: under Adam the penalty alone prunes them all at one step, which the guard reports
    "scl": Row({"m_init": 0.1}, dense_weight_gradient, options={"guard": None}),
    "topkast": Row({"sparsity": QUARTER, "backward_sparsity": 0.5}, half_of_the_weight_gradient, quarter_each),
    "topkast+pp": Row({"sparsity": QUARTER}, dense_weight_gradient, quarter_each),
    "topkast+ga": Row({"sparsity": QUARTER, "ga": ANNEALED}, dense_gradient_until_epoch_3, quarter_each),
    "rigl": Row({"sparsity": QUARTER, "update_every": 4}, dense_gradient_every_fourth_step, quarter_each, holds_zeros=True),
    "set": Row({"sparsity": QUARTER}, sparse, erdos_renyi, holds_zeros=True),
    "dsr": Row({"sparsity": QUARTER, "update_every": 2, "threshold": 0.02}, sparse, quarter_of_all, holds_zeros=True),
    "snfs": Row({"sparsity": QUARTER}, dense_weight_gradient, quarter_of_all, holds_zeros=True),
    "mest": Row({"sparsity": QUARTER, "mutation": (0.1, 0.05), "update_epochs": 1}, sparse, quarter_each, holds_zeros=True),
    "swat": Row(
        {"sparsity": QUARTER, "activation_sparsity": 0.5, "update_every": 3},
        half_of_the_weight_gradient,
        quarter_each,
        throughout=False,
    ),
    "gmp": Row({"sparsity": QUARTER, "update_every": 2}, sparse, quarter_each, throughout=False, holds_zeros=True),
    "dnw": Row({"sparsity": QUARTER}, dense_weight_gradient, quarter_each),
    "dpf": Row(
        {"sparsity": QUARTER, "update_every": 4},
        dense_weight_gradient,
        quarter_of_all,
        throughout=False,
    ),
    "snip": Row({"sparsity": QUARTER}, sparse, quarter_of_all, scores=True, scoring_steps=SCORED_BATCHES, holds_zeros=True),
    "grasp": Row(
        {"sparsity": QUARTER}, sparse, quarter_of_all, scores=True, scoring_steps=4 * SCORED_BATCHES, holds_zeros=True
    ),
    # 40 samples of ones fill two batches of 32
    "synflow": Row(
        {"sparsity": QUARTER, "rounds": 40, "scope": "layer"},
        sparse,
        quarter_each,
        scores=True,
        scoring_steps=2,
        holds_zeros=True,
    ),
    "random": Row({"sparsity": QUARTER, "distribution": "erk"}, sparse, erdos_renyi_kernel, holds_zeros=True),
    "prune_retrain": Row(
        {"sparsity": QUARTER, "rounds": 3}, sparse, quarter_each, throughout=False, rounds=4, epochs=1, holds_zeros=True
    ),
    "lottery": Row(
        {"sparsity": QUARTER, "rounds": 1, "rewind_epoch": 1},
        sparse,
        quarter_of_all,
        throughout=False,
        rounds=2,
        epochs=2,
        holds_zeros=True,
    ),
    "st3": Row({"target_sparsity": QUARTER}, dense_weight_gradient),
    "st3+ga": Row({"target_sparsity": QUARTER, "zero_epoch": 3}, dense_gradient_until_epoch_3),
    "feather": Row({"target_sparsity": QUARTER}, dense_weight_gradient),
    "feather+ga": Row({"target_sparsity": QUARTER, "zero_epoch": 3}, dense_gradient_until_epoch_3),
    "granet": Row(
        {"sparsity": QUARTER, "update_every": 4},
        dense_gradient_at_updates_of_granet,
        quarter_of_all,
        throughout=False,
        holds_zeros=True,
    ),
    "acdc": Row({"sparsity": QUARTER, "phase": 0.1}, sparse, quarter_of_all, throughout=False, holds_zeros=True),
    "keep": Row({}, sparse, quarter_each, holds_zeros=True),
    # a forward pass per batch and block: seven blocks of the conv net, three of the transformer
    "wanda": Row(
        {"sparsity": QUARTER},
        sparse,
        quarter_of_each_row,
        scores=True,
        scoring_steps={"conv": SCORED_BATCHES * 7 / 3, "transformer": SCORED_BATCHES * 3 / 3},
        holds_zeros=True,
    ),
    "dns": Row({"c_rate": 0.0, "gamma": 0.01}, dense_weight_gradient),
    "3sp": Row(
        {"sparsity": 0.5},
        sparse,
        half_by_channels,
        scores=True,
        scoring_steps=SCORED_BATCHES,
        options=WITH_EXAMPLE,
        holds_zeros=True,
    ),
    "gdp": Row(
        {"penalty_weight": 40.0, "theta_init": 0.25, "flops": 0.6, "closed_below": 0.36, "final_epsilon": 0.05},
        sparse,
        options=WITH_EXAMPLE,
    ),
    "gradmax": Row(
        {"final_width": 0.5, "growths": 3, "begin": 0.1},
        sparse,
        half_of_what_grows,
        throughout=False,
        options=WITH_EXAMPLE,
        holds_zeros=True,
    ),
}
