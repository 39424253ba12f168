"""A stretch of a network as the engine sees it: steps over numbered values, each (channels, rows, cols) a sample."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

INFINITY = float("inf")
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Step:
    """What all steps have: a name for tables, the values read, the value made, and bounds put on it (ReLU: 0 and infinity)."""

    name: str
    inputs: tuple[int, ...]
    output: int
    low: float = field(default=-INFINITY, kw_only=True)
    high: float = field(default=INFINITY, kw_only=True)

    @property
    def bounded(self) -> bool:
        return (self.low, self.high) != (-INFINITY, INFINITY)


@dataclass(frozen=True, eq=False)
class Convolution(Step):
    """A convolution; a second input is added before the bounds; `before` is a depthwise convolution computed on the way."""

    weight: Tensor
    bias: Tensor | None
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    before: Convolution | None = None

    @property
    def in_channels(self) -> int:
        return self.weight.shape[1] * self.groups

    @property
    def out_channels(self) -> int:
        return self.weight.shape[0]

    @property
    def kernel(self) -> Pair:
        return self.weight.shape[2], self.weight.shape[3]

    @property
    def depthwise(self) -> bool:
        return self.groups == self.in_channels == self.out_channels and self.groups > 1

    @property
    def pointwise(self) -> bool:
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)


@dataclass(frozen=True, eq=False)
class Pool(Step):
    """The largest or the mean of a window."""

    largest: bool
    kernel: Pair
    stride: Pair
    padding: Pair


@dataclass(frozen=True, eq=False)
class Sum(Step):
    """Two values added; of one value, its bounds alone."""


@dataclass(frozen=True, eq=False)
class Join(Step):
    """Values behind each other along the channels."""


@dataclass(frozen=True, eq=False)
class Mean(Step):
    """The mean over all pixels; leaves the engine."""


@dataclass(frozen=True)
class Region:
    """Steps in order, the values that come from outside and those that leave."""

    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def fuse(region: Region) -> Region:
    """Bounds and sums move into the step before them, depthwise convolutions into the pointwise one after them."""
    steps = list(region.steps)
    steps = _merge(steps, region, _bounds_into_producer)
    steps = _merge(steps, region, _sum_into_convolution)
    # a ReLU after a sum could only move once the sum had moved
    steps = _merge(steps, region, _bounds_into_producer)
    steps = _merge(steps, region, _depthwise_into_pointwise)
    return replace(region, steps=tuple(steps))


def _merge(steps: list[Step], region: Region, rule: object) -> list[Step]:
    """Apply `rule(step, producer) -> merged or None` wherever a value has one reader and stays inside."""
    assert callable(rule)
    kept = dict.fromkeys(region.outputs)
    found: list[Step] = []
    for step in steps:
        readers = [value for each in steps for value in each.inputs]
        merged = None
        for producer in reversed(found):
            if producer.output in step.inputs and readers.count(producer.output) == 1 and producer.output not in kept:
                merged = rule(step, producer)
                if merged is not None:
                    found.remove(producer)
                    break
        found.append(step if merged is None else merged)
    return found


def _bounds_into_producer(step: Step, producer: Step) -> Step | None:
    if not isinstance(step, Sum) or len(step.inputs) != 1 or isinstance(producer, Mean | Join):
        return None
    if producer.bounded:
        return None
    return replace(producer, output=step.output, low=step.low, high=step.high)


def _sum_into_convolution(step: Step, producer: Step) -> Step | None:
    if not isinstance(step, Sum) or len(step.inputs) != 2 or not isinstance(producer, Convolution):
        return None
    if producer.bounded or len(producer.inputs) > 1 or producer.depthwise or step.inputs[0] == step.inputs[1]:
        return None
    other = step.inputs[1] if step.inputs[0] == producer.output else step.inputs[0]
    return replace(producer, inputs=(*producer.inputs, other), output=step.output, low=step.low, high=step.high)


def _depthwise_into_pointwise(step: Step, producer: Step) -> Step | None:
    if not isinstance(step, Convolution) or not isinstance(producer, Convolution):
        return None
    fits = step.pointwise and step.groups == 1 and producer.depthwise and producer.stride == (1, 1)
    if not fits or producer.output != step.inputs[0]:
        return None
    return replace(step, inputs=(producer.inputs[0], *step.inputs[1:]), before=producer)
