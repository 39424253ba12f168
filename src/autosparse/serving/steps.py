"""A stretch of a network as the engine sees it: steps over numbered values of (channels, rows, cols) per sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

INFINITY = float("inf")
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Step:
    """What all steps have: a name for tables, the values they read, the value they make, its bounds (ReLU: 0 and infinity)."""

    name: str
    inputs: tuple[int, ...]
    output: int
    low: float = field(default=-INFINITY, kw_only=True)
    high: float = field(default=INFINITY, kw_only=True)

    @property
    def bounded(self) -> bool:
        return (self.low, self.high) != (-INFINITY, INFINITY)


@dataclass(frozen=True, eq=False)
class Origin:
    """A weight before norms were folded into it, and what its rows were multiplied with then."""

    weight: Tensor
    factors: Tensor


@dataclass(frozen=True, eq=False)
class ConvolutionStep(Step):
    """A convolution; a second input is added before the bounds; `before` is a depthwise convolution computed on the way."""

    weight: Tensor
    bias: Tensor | None
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    before: ConvolutionStep | None = None
    origin: Origin | None = None

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
    def window(self) -> str:
        """Kernel and stride, for tables."""
        return f"{self.kernel[0]}x{self.kernel[1]}" + ("" if self.stride == (1, 1) else f" /{self.stride[0]}")

    @cached_property
    def density(self) -> float:
        return float((self.weight != 0).sum()) / max(self.weight.numel(), 1)

    @property
    def depthwise(self) -> bool:
        return self.groups == self.in_channels == self.out_channels and self.groups > 1

    @property
    def pointwise(self) -> bool:
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)


@dataclass(frozen=True, eq=False)
class PoolStep(Step):
    """The largest or the mean of a window."""

    largest: bool
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair = (1, 1)


@dataclass(frozen=True, eq=False)
class SumStep(Step):
    """The sum of two values; with one value, its bounds alone."""


@dataclass(frozen=True, eq=False)
class ConcatStep(Step):
    """Concatenation along the channels."""


@dataclass(frozen=True, eq=False)
class MeanStep(Step):
    """The mean over all pixels; leaves the engine."""


@dataclass(frozen=True)
class Region:
    """Steps in order, the values that come from outside and those that leave."""

    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def products(self) -> dict[int, ConvolutionStep]:
        """The convolutions that mix channels, by their place: they can be computed in several ways."""
        return {
            index: step for index, step in enumerate(self.steps) if isinstance(step, ConvolutionStep) and not step.depthwise
        }


def fuse(region: Region) -> Region:
    """Bounds and sums move into the step before them, depthwise convolutions into the pointwise one after them."""
    steps = list(region.steps)
    # bounds twice: a ReLU after a sum can only move once the sum has moved
    for rule in (bounds_into_producer, sum_into_convolution, bounds_into_producer, _depthwise_into_pointwise):
        steps = merged_steps(steps, region, rule)
    return replace(region, steps=tuple(steps))


def merged_steps(steps: list[Step], region: Region, rule: Callable[[Step, Step], Step | None]) -> list[Step]:
    """Apply `rule(step, producer) -> merged or None` wherever a value has one reader and stays inside."""
    readers = Counter(value for step in steps for value in step.inputs) + Counter(region.outputs)
    result: list[Step] = []
    for step in steps:
        merged = None
        for producer in reversed(result):
            if producer.output in step.inputs and readers[producer.output] == 1:
                merged = rule(step, producer)
                if merged is not None:
                    result.remove(producer)
                    break
        result.append(step if merged is None else merged)
    return result


def bounds_into_producer(step: Step, producer: Step) -> Step | None:
    """Bounds as part of the step that makes what they bound."""
    if not isinstance(step, SumStep) or len(step.inputs) != 1 or isinstance(producer, MeanStep | ConcatStep):
        return None
    if producer.bounded:
        return None
    return replace(producer, output=step.output, low=step.low, high=step.high)


def sum_into_convolution(step: Step, producer: Step, depthwise: bool = False) -> Step | None:
    """A sum of two values as part of the convolution that makes one of them; also of depthwise ones if asked."""
    if not isinstance(step, SumStep) or len(step.inputs) != 2 or not isinstance(producer, ConvolutionStep):
        return None
    if (
        producer.bounded
        or len(producer.inputs) > 1
        or (producer.depthwise and not depthwise)
        or step.inputs[0] == step.inputs[1]
    ):
        return None
    other = step.inputs[1] if step.inputs[0] == producer.output else step.inputs[0]
    return replace(producer, inputs=(*producer.inputs, other), output=step.output, low=step.low, high=step.high)


def _depthwise_into_pointwise(step: Step, producer: Step) -> Step | None:
    if not isinstance(step, ConvolutionStep) or not isinstance(producer, ConvolutionStep):
        return None
    fits = step.pointwise and step.groups == 1 and producer.depthwise and producer.stride == (1, 1)
    if not fits or producer.output != step.inputs[0]:
        return None
    return replace(step, inputs=(producer.inputs[0], *step.inputs[1:]), before=producer)
