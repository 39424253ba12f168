"""What a figure shows, without how it is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autosparse.report.palette import Colour
from autosparse.report.runs import Run

# A figure cannot show more points than this.
MOST_POINTS = 400
# Below this ratio of largest to smallest value a linear axis is easier to read than a log axis.
LOG_RATIO = 50.0


@dataclass(frozen=True)
class Curve:
    """One curve; None is a gap."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    colour: Colour
    dashed: bool = False

    @property
    def empty(self) -> bool:
        return all(value is None for value in self.ys)


@dataclass(frozen=True)
class Titled:
    """What every chart says of itself; a `unit` is "%" or nothing."""

    key: str
    title: str
    note: str
    x_label: str


@dataclass(frozen=True)
class LineChart(Titled):
    """Curves over time; the axis reaches at least from low to high."""

    y_label: str
    unit: str
    lines: tuple[Curve, ...]
    low: float | None = None
    high: float | None = None
    last_x: float | None = None
    log: bool = False

    def y_range(self) -> tuple[float, float, bool]:
        """The ends of the y axis, with a margin around the values, and whether it is logarithmic."""
        values = sorted(value for line in self.lines for value in line.ys if value is not None) or [0.0, 1.0]
        first, last = values[0], values[-1]
        if self.log and first > 0 and last / first > LOG_RATIO:
            return first / 1.3, last * 1.3, True
        margin = 0.06 * (last - first) or 0.05 * abs(last) or 0.5
        # a quantity that is never negative does not get an axis below 0
        padded = max(0.0, first - margin) if first >= 0 else first - margin
        bottom = padded if self.low is None else min(self.low, first)
        top = last + margin if self.high is None else max(self.high, last)
        return bottom, top if top > bottom else bottom + 1.0, False


@dataclass(frozen=True)
class Mark:
    """One series of a row chart; `guide` is a value of the whole series, drawn across all rows."""

    name: str
    colour: Colour
    guide: float | None = None


@dataclass(frozen=True)
class LayerRow:
    """One layer: a value per mark, and the pale bar behind them."""

    name: str
    values: tuple[float | None, ...]
    behind: float | None = None
    text: str = ""


@dataclass(frozen=True)
class RowChart(Titled):
    """One row per layer: a bar for one mark, dots for several."""

    unit: str
    marks: tuple[Mark, ...]
    rows: tuple[LayerRow, ...]
    behind_name: str = ""
    guide_name: str = ""
    high: float | None = None


@dataclass(frozen=True)
class Point:
    """One run in a plane; the best ones are on the frontier."""

    name: str
    group: str
    x: float
    y: float
    colour: Colour
    best: bool = False
    shape: str = "dot"


@dataclass(frozen=True)
class PointChart(Titled):
    """Runs as points; `guide` is a level of y to compare them with."""

    y_label: str
    unit: str
    points: tuple[Point, ...]
    guide: float | None = None
    guide_name: str = ""


Chart = LineChart | RowChart | PointChart


def labels(runs: Sequence[Run]) -> list[str]:
    """A unique name per run: the recipe's, with "dense", the seed, the folder or a number where that is needed."""
    names = [run.name for run in runs]
    twins = [f"{run.name}, dense" if run.is_dense else run.name for run in runs]
    seeded = [f"{run.name}, seed {run.info.get('seed', '?')}" for run in runs]
    placed = [f"{run.name} ({run.folder.resolve().name})" for run in runs]
    numbered = [f"{run.name} ({place})" for place, run in enumerate(runs, start=1)]
    for candidate in (names, twins, seeded, placed):
        if len(set(candidate)) == len(runs):
            return candidate
    repeated = Counter(names)
    return [number if repeated[name] > 1 else name for name, number in zip(names, numbered, strict=True)]


def thinned(xs: Sequence[float], ys: Sequence[float | None]) -> tuple[list[float], list[float | None]]:
    """At most as many points as a figure can show, always with the last one."""
    every = -(-len(xs) // MOST_POINTS) or 1
    places = sorted({*range(0, len(xs), every), *([len(xs) - 1] if xs else [])})
    return [xs[place] for place in places], [ys[place] for place in places]


def percent(fraction: float | None) -> float | None:
    """A fraction in percent; a missing value stays missing."""
    return None if fraction is None else 100 * fraction
