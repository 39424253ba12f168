"""The numbers of a run, per layer and overall: the only place they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from autosparse.common.tensors import precise

if TYPE_CHECKING:
    from autosparse.cost import Profile
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

    @property
    def sparsity(self) -> float:
        return self.zeros / self.weights

    @property
    def density(self) -> float:
        return 1 - self.sparsity


@dataclass(frozen=True)
class Report:
    """Everything that is known of a run; prints as a table."""

    method: str
    step: int
    epoch: int
    epochs: int
    layers: tuple[LayerReport, ...]
    train_fraction: float | None
    test_fraction: float | None
    compute: str
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

    def __str__(self) -> str:
        head = ("layer", "kind", "weights", "zeros", "sparsity", "threshold", "MACs")
        rows: list[tuple[str, ...]] = [
            (
                layer.name,
                layer.kind,
                f"{layer.weights:,}",
                f"{layer.zeros:,}",
                f"{layer.sparsity:.2%}",
                "-" if layer.threshold is None else f"{layer.threshold:.4g}",
                "-" if layer.macs is None else f"{layer.macs:,}",
            )
            for layer in self.layers
        ]
        macs = [layer.macs for layer in self.layers]
        total = "-" if None in macs else f"{sum(value for value in macs if value is not None):,}"
        rows.append(("total", "", f"{self.weights:,}", f"{self.zeros:,}", f"{self.sparsity:.2%}", "", total))
        lines = [f"{self.method}: epoch {self.epoch} of {self.epochs}, step {self.step}", *_table(head, rows)]
        if self.train_fraction is not None and self.test_fraction is not None:
            lines.append(f"Train F {self.train_fraction:.3f}, Test F {self.test_fraction:.3f} of the dense run's FLOPs")
        return "\n".join([*lines, self.compute, *self.notes, *self.events])


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(row: tuple[str, ...]) -> str:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    rule = "-" * len(line(tuple("x" * width for width in widths)))
    return [line(head), rule, *map(line, rows[:-1]), rule, line(rows[-1])]


class RunCost:
    """Costs of a run as fractions of the dense run's."""

    def __init__(self, run: Sparsifier) -> None:
        self._run = run

    @property
    def train_fraction(self) -> float:
        """Train F: FLOPs spent in training over those of the dense baseline."""
        return self._run.ledger.train_fraction

    @property
    def test_fraction(self) -> float:
        """Test F: FLOPs of one forward pass over the dense one's."""
        return self._run.ledger.test_fraction(self._run.densities())

    @property
    def profile(self) -> Profile | None:
        """MACs of every layer of the dense model, once known."""
        return self._run.ledger.profile


def make_report(run: Sparsifier, compute: str) -> Report:
    """The report of a run as it stands now."""
    profile = run.ledger.profile
    rows = []
    for layer, count in zip(run.layers, run.counts().tolist(), strict=True):
        values = layer.parametrization.threshold_values() if layer.attached else None
        threshold = None if values is None else float(precise(values).mean())
        macs = None if profile is None else profile.macs_of(layer.name)
        rows.append(LayerReport(layer.name, layer.kind, layer.numel, layer.numel - int(count), threshold, macs))
    return Report(
        method=run.method.about.name,
        step=run.step,
        epoch=run.epoch,
        epochs=run.epochs,
        layers=tuple(rows),
        train_fraction=run.cost.train_fraction if profile and run.ledger.steps else None,
        test_fraction=run.cost.test_fraction if profile else None,
        compute=compute,
        notes=tuple(run.method.notes(run)),
        events=tuple(str(event) for event in run.events),
        history=tuple(run.history),
        part_history={name: tuple(part.history) for name, part in run.parts.items() if hasattr(part, "history")},
    )


def epoch_record(run: Sparsifier, loss: float | None) -> dict[str, Any]:
    """What is kept of every epoch, for reports and figures."""
    densities, sizes = run.densities(), [layer.numel for layer in run.layers]
    zeros = sum((1 - density) * size for density, size in zip(densities, sizes, strict=True))
    values = [layer.parametrization.threshold_values() for layer in run.layers]
    known = [precise(value).mean() for value in values if value is not None]
    means = iter(torch.stack(known).tolist() if known else [])
    return {
        "epoch": run.epoch,
        "step": run.step,
        "loss": loss,
        "alpha": run.alpha,
        "sparsity": zeros / sum(sizes),
        "densities": densities,
        "thresholds": [None if value is None else next(means) for value in values],
    }
