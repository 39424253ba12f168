"""The numbers of a run, per layer and overall: they come from nowhere else."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from autosparse.common.tables import Table
from autosparse.common.tensors import precise
from autosparse.cost import Profile
from autosparse.layer import Layer
from autosparse.sparsifier.report_html import HEADINGS, html
from autosparse.sparsifier.speed import Speed

if TYPE_CHECKING:
    from autosparse.sparsifier import Sparsifier


@dataclass(frozen=True)
class LayerReport:
    """One sparsified tensor."""

    name: str
    kind: str
    weights: int
    zeros: int
    threshold: float | None
    macs: int | None
    computed: str = ""  # which passes skip zeros, or why none does

    @property
    def sparsity(self) -> float:
        return self.zeros / self.weights

    @property
    def density(self) -> float:
        return 1 - self.sparsity

    def cells(self) -> tuple[Any, ...]:
        """The row of the table."""
        threshold = "-" if self.threshold is None else f"{self.threshold:.4g}"
        macs = "-" if self.macs is None else self.macs
        return self.name, self.kind, self.weights, self.zeros, f"{self.sparsity:.2%}", threshold, macs, self.computed


@dataclass(frozen=True)
class Report:
    """Everything known about a run; prints as a table."""

    method: str
    step: int
    epoch: int
    epochs: int
    layers: tuple[LayerReport, ...]
    train_fraction: float | None
    test_fraction: float | None
    compute: str
    speed: Speed | None = None
    notes: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    history: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    part_history: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict, repr=False)

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def zeros(self) -> int:
        return sum(layer.zeros for layer in self.layers)

    @property
    def sparsity(self) -> float:
        return self.zeros / self.weights

    @property
    def controller(self) -> tuple[tuple[float, ...], ...]:
        """Moves of the target controller: step, sparsity on the ramp, sparsity reached, factor."""
        return self.part_history.get("controller", ())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        layers = [{**asdict(layer), "sparsity": layer.sparsity} for layer in self.layers]
        totals = {"weights": self.weights, "zeros": self.zeros, "sparsity": self.sparsity}
        return {**asdict(self), **totals, "layers": layers, "controller": self.controller}

    @property
    def title(self) -> str:
        return f"{self.method}: epoch {self.epoch} of {self.epochs}, step {self.step}"

    def totals(self) -> tuple[Any, ...]:
        """The last row of the table."""
        macs = [layer.macs for layer in self.layers if layer.macs is not None]
        total_macs = sum(macs) if len(macs) == len(self.layers) else "-"
        return "total", "", self.weights, self.zeros, f"{self.sparsity:.2%}", "", total_macs, ""

    def lines(self) -> list[str]:
        """What is said below the table."""
        lines = [self.compute, *([str(self.speed)] if self.speed else []), *self.notes, *self.events]
        if self.train_fraction is not None and self.test_fraction is not None:
            lines.insert(0, f"Train F {self.train_fraction:.3f}, Test F {self.test_fraction:.3f} of the dense run's FLOPs")
        return lines

    def __str__(self) -> str:
        rows = [layer.cells() for layer in self.layers]
        return Table(HEADINGS, rows, self.totals(), self.title, self.lines()).text()

    def _repr_html_(self) -> str:
        """What notebooks show."""
        return html(self)


class RunCost:
    """Costs of a run as fractions of the dense run's."""

    def __init__(self, sp: Sparsifier) -> None:
        self._sp = sp

    @property
    def train_fraction(self) -> float:
        """Train F: FLOPs spent in training over those of the dense baseline."""
        return self._sp.ledger.train_fraction

    @property
    def test_fraction(self) -> float:
        """Test F: FLOPs of one forward pass over the dense one's."""
        return self._sp.ledger.test_fraction(self._sp.densities())

    @property
    def profile(self) -> Profile | None:
        """MACs of every layer of the dense model, once known."""
        return self._sp.ledger.profile


def make_report(sp: Sparsifier) -> Report:
    """The report of a run as it stands now."""
    profile, plans = sp.ledger.profile, sp.layer_plans()
    rows = [
        LayerReport(
            layer.name,
            layer.kind,
            layer.numel,
            layer.numel - int(count),
            threshold,
            None if profile is None else profile.macs_of(layer.name),
            str(plan),
        )
        for layer, count, threshold, plan in zip(
            sp.layers, sp.counts().tolist(), mean_thresholds(sp.layers), plans, strict=True
        )
    ]
    return Report(
        method=sp.method.about.name,
        step=sp.step,
        epoch=sp.epoch,
        epochs=sp.epochs,
        layers=tuple(rows),
        train_fraction=sp.cost.train_fraction if profile and sp.ledger.steps else None,
        test_fraction=sp.cost.test_fraction if profile else None,
        compute=str(sp._compute),
        speed=sp.speed(plans),
        notes=tuple(sp.method.notes(sp)),
        events=tuple(str(event) for event in sp.events),
        history=tuple(sp.history),
        part_history={name: tuple(part.history) for name, part in sp.parts.items() if hasattr(part, "history")},
    )


def save_page(sp: Sparsifier, path: str | PathLike[str], **facts: Any) -> Path:
    """Write the run as one HTML page; `title`, `accuracy` (one, or one per epoch) and `base_accuracy` are shown with it."""
    # by name, since pages are made two floors above: a Sparsifier works without them
    pages = importlib.import_module("autosparse.report.loops")
    written: Path = pages.save_page(sp, Path(path), **facts)
    return written


def mean_thresholds(layers: Sequence[Layer]) -> list[float | None]:
    """The mean threshold of every layer that has one, in one sync."""
    values = [layer.parametrization.threshold_values() if layer.attached else None for layer in layers]
    means = [precise(value).mean() for value in values if value is not None]
    numbers = iter(torch.stack(means).tolist() if means else ())
    return [None if value is None else next(numbers) for value in values]


def epoch_record(sp: Sparsifier, loss: float | None) -> dict[str, Any]:
    """What is kept of every epoch, for reports and figures."""
    densities, sizes = sp.densities(), [layer.numel for layer in sp.layers]
    zeros = sum((1 - density) * size for density, size in zip(densities, sizes, strict=True))
    record = {
        "epoch": sp.epoch,
        "step": sp.step,
        "loss": loss,
        "alpha": sp.alpha,
        "sparsity": zeros / sum(sizes),
        "densities": densities,
        "thresholds": mean_thresholds(sp.layers),
    }
    if sp.ledger.profile is not None:
        record |= {"train_fraction": sp.ledger.train_fraction, "test_fraction": sp.ledger.test_fraction(densities)}
    return record
