"""Decides for every layer and pass whether dense torch or the sparse kernels run, from measured times.

Sparse times are modelled as a + b * nonzeros; dense times do not depend on the zeros. All eight combinations of passes are
compared together, since they share the cost of compressing the weight. A workload is measured once, at fixed densities, so
that every decision follows from these samples and the density: a resumed run, which has them in its state, decides alike.
What is measured, and when, is injected: this file has no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from autosparse.kernels.geometry import Convolution

# No layer was faster sparse than dense above this density: nothing is measured there.
MAX_SPARSE_DENSITY = 0.6
# A combination must promise to be this much faster than the present one before it replaces it.
HYSTERESIS = 0.05
# The same for fusing a model at all: what joins branches, and the way in and out, is not measured.
FUSING_GAIN = 0.1
# A line through these predicts all densities that are planned for.
SAMPLED_DENSITIES = (0.3, 0.05)
# Multiply-adds of one dense pass. Below, even a layer of 90 % zeros gains less than 0.2 ms per step or loses by the cost of
# calling our operators: it stays dense without being measured, so that small models train the same way every time.
LEAST_WORK = 20_000_000


# Of activations and their gradients; weights and their gradients are always float32.
FLOAT32, BFLOAT16 = "float32", "bfloat16"


class Passes(NamedTuple):
    """Which passes of a layer run on the sparse kernels."""

    forward: bool
    input: bool
    weight: bool


DENSE = Passes(False, False, False)


@dataclass(frozen=True)
class Workload:
    """A layer at one input size and precision; a linear layer is a convolution over one row of pixels with a dense routine of
    its own.

    `fused`: the steps around it (batch norm, ReLU) are part of its sparse passes, and passes of their own around dense ones.
    """

    conv: Convolution
    linear: bool
    threads: int
    fused: bool = False
    precision: str = FLOAT32

    def among_fused(self, images_last: bool) -> Workload:
        """The same between fused neighbours, whose tensors lie in this order."""
        return replace(self, fused=True, conv=replace(self.conv, images_last=images_last))

    @property
    def weights(self) -> int:
        return self.conv.out_channels * self.conv.in_channels * self.conv.taps

    @property
    def work(self) -> int:
        """Multiply-adds of one dense pass."""
        rows, cols = self.conv.out_size
        return self.conv.images * rows * cols * self.weights


class Sample(NamedTuple):
    """Measured seconds of the sparse kernels at one number of non-zeros; `both`: of the two gradients in one pass."""

    nonzeros: int
    forward: float
    input: float
    weight: float
    compress: float
    both: float | None = None


@dataclass(frozen=True)
class Line:
    """seconds = fixed + slope * nonzeros, neither below zero."""

    fixed: float
    slope: float

    def at(self, nonzeros: float) -> float:
        return self.fixed + self.slope * nonzeros

    @staticmethod
    def fit(points: Sequence[tuple[float, float]]) -> Line:
        """Least squares; one point gives a line through the origin, a falling line its mean."""
        count = len(points)
        mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        if spread == 0:
            return Line(0.0, mean_y / mean_x) if mean_x > 0 else Line(mean_y, 0.0)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
        if slope <= 0:
            return Line(mean_y, 0.0)
        if mean_y < slope * mean_x:  # would cross the axis above zero: the line through the origin instead
            return Line(0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points))
        return Line(mean_y - slope * mean_x, slope)


@dataclass(frozen=True)
class Times:
    """What was measured of a workload: its dense passes, and sparse ones at several densities."""

    dense_forward: float
    dense_input: float
    dense_weight: float
    operators: float  # what calling our operators adds to a step, compared with torch's own layer
    samples: tuple[Sample, ...]
    dense_grad: float = 0.0  # between fused neighbours: making the output's gradient for a dense pass, once for both
    dense_alone: float | None = None  # the layer and the steps around it in torch; None where none are fused with it

    def dense(self, part: str) -> float:
        return float(getattr(self, f"dense_{part}"))

    def sparse(self, part: str, nonzeros: float) -> float:
        return Line.fit([(sample.nonzeros, float(getattr(sample, part))) for sample in self.samples]).at(nonzeros)

    def cost(self, passes: Passes, nonzeros: int, mask_nonzeros: int | None) -> float:
        """Seconds of a step; the weight gradient may have a pattern of its own, which is compressed as well."""
        seconds = 0.0
        for part, sparse in passes._asdict().items():
            entries = mask_nonzeros if part == "weight" and mask_nonzeros is not None else nonzeros
            seconds += self.sparse(part, entries) if sparse else self.dense(part)
        if not (passes.input and passes.weight):
            seconds += self.dense_grad
        if passes.input and passes.weight and mask_nonzeros is None and all(each.both is not None for each in self.samples):
            apart = self.sparse("input", nonzeros) + self.sparse("weight", nonzeros)
            seconds += self.sparse("both", nonzeros) - apart
        if any(passes):
            seconds += self.operators
        if passes.forward or passes.input or (passes.weight and mask_nonzeros is None):
            seconds += self.sparse("compress", nonzeros)
        if passes.weight and mask_nonzeros is not None:
            seconds += self.sparse("compress", mask_nonzeros)
        return seconds


@dataclass(frozen=True)
class Decision:
    """A layer's present choice, with the predicted seconds of a step."""

    passes: Passes
    seconds: float
    dense_seconds: float


Measure = Callable[[Workload, Sequence[float]], Times]


class Planner:
    """Keeps what was measured and decided; `measure(workload, densities)` does the timing."""

    def __init__(self, measure: Measure | None = None, clock: Callable[[], float] | None = None) -> None:
        if measure is None or clock is None:
            from autosparse.compute import timing

            measure, clock = measure or timing.measure, clock or timing.CLOCK
        self._measure, self._clock = measure, clock
        self._times: dict[Workload, Times] = {}
        self.decisions: dict[str, Decision] = {}
        self.seconds_spent = 0.0
        self.measured: Callable[[Planner], None] | None = None  # called whenever something was

    def times(self, workload: Workload) -> Times:
        """The times of a workload, measured when they are first asked for."""
        if workload not in self._times:
            begin = self._clock()
            self._times[workload] = self._measure(workload, SAMPLED_DENSITIES)
            self.seconds_spent += self._clock() - begin
            if self.measured is not None:
                self.measured(self)
        return self._times[workload]

    def considers(self, workload: Workload, density: float) -> bool:
        """Whether it may run sparse at all: zeros enough, and work enough."""
        return density <= MAX_SPARSE_DENSITY and workload.work >= LEAST_WORK

    def decide(
        self, layer: str, workload: Workload, density: float, entries: str = "active", mask_density: float | None = None
    ) -> Passes:
        """How a layer runs from now on. `entries` are those of the weight gradient that are needed."""
        if not 0 <= density <= 1:
            raise ValueError(f"density {density} of layer {layer!r}; it is the fraction of non-zeros, between 0 and 1")
        if (entries == "mask") != (mask_density is not None):
            raise ValueError(f"entries={entries!r} with mask_density={mask_density}; a mask, and only a mask, has a density")
        if not self.considers(workload, density):
            self.decisions.pop(layer, None)
            return DENSE
        times = self.times(workload)
        nonzeros = round(density * workload.weights)
        mask_nonzeros = None if mask_density is None else round(mask_density * workload.weights)

        def cost(passes: Passes) -> float:
            return times.cost(passes, nonzeros, mask_nonzeros)

        best = min(_combinations(weight=entries != "all"), key=cost)
        present = self.decisions[layer].passes if layer in self.decisions else None
        if present is not None and entries == "all":
            present = present._replace(weight=False)
        if present is not None and cost(best) > (1 - HYSTERESIS) * cost(present):
            best = present
        self.decisions[layer] = Decision(best, cost(best), cost(DENSE) if times.dense_alone is None else times.dense_alone)
        return best

    def fusing_pays(self, layers: Mapping[str, Workload], are_fused: bool) -> bool:
        """Whether layers that are fused together are faster, as they were decided, than torch by itself.

        Between fused neighbours a dense pass needs sweeps of its own: a layer may gain by its zeros where the whole loses.
        """
        ours, dense = 0.0, 0.0
        for layer, workload in layers.items():
            if workload.work < LEAST_WORK:
                continue
            try:
                times = self.times(workload)
            except ValueError:  # larger than the kernels' indices reach: dense in any case
                continue
            if times.dense_alone is None:  # measured by an older version
                return True
            ours += self.decisions[layer].seconds if layer in self.decisions else times.cost(DENSE, 0, None)
            dense += times.dense_alone
        return ours <= dense * (1 - (HYSTERESIS if are_fused else FUSING_GAIN))

    def leave_dense(self, layers: Iterable[str]) -> None:
        """These layers run dense, whatever was decided for each of them."""
        for layer in layers:
            if layer in self.decisions:
                dense = self.decisions[layer].dense_seconds
                self.decisions[layer] = Decision(DENSE, dense, dense)

    def add_times(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take in what was measured elsewhere, in plain values; what is known here stays."""
        self._times = {**all_times(rows), **self._times}

    def state_dict(self) -> dict[str, Any]:
        """Samples and decisions in plain values."""
        return {
            "times": [
                {**asdict(times), "samples": [list(sample) for sample in times.samples], "workload": asdict(workload)}
                for workload, times in self._times.items()
            ],
            "decisions": {layer: asdict(each) | {"passes": list(each.passes)} for layer, each in self.decisions.items()},
            "seconds_spent": self.seconds_spent,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the samples and decisions of another planner instead of one's own."""
        self._times = all_times(state["times"])
        self.decisions = {
            layer: Decision(Passes(*each["passes"]), **_others(each, "passes")) for layer, each in state["decisions"].items()
        }
        self.seconds_spent = state["seconds_spent"]


def all_times(rows: Sequence[Mapping[str, Any]]) -> dict[Workload, Times]:
    """From plain values."""
    return {
        _workload(each["workload"]): Times(**_others(each, "workload", "samples"), samples=_samples(each["samples"]))
        for each in rows
    }


def _others(fields: Mapping[str, Any], *without: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in without}


def _samples(rows: Iterable[Sequence[Any]]) -> tuple[Sample, ...]:
    return tuple(Sample(*row) for row in rows)


def _workload(fields: Mapping[str, Any]) -> Workload:
    conv = fields["conv"]
    sizes: dict[str, Any] = {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in conv.items()}
    precision = fields.get("precision", FLOAT32)  # which older states do not have
    return Workload(Convolution(**sizes), fields["linear"], fields["threads"], fields["fused"], precision)


def _combinations(weight: bool) -> Iterable[Passes]:
    return (Passes(*each) for each in product((False, True), (False, True), (False, True) if weight else (False,)))
