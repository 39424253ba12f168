"""The numbers of a run, per layer and overall: the only place they come from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


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
    controller: tuple[tuple[int, float, float, float], ...] = field(default=(), repr=False)

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def zeros(self) -> int:
        return sum(layer.zeros for layer in self.layers)

    @property
    def sparsity(self) -> float:
        return self.zeros / self.weights

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        layers = [{**asdict(layer), "sparsity": layer.sparsity} for layer in self.layers]
        totals = {"weights": self.weights, "zeros": self.zeros, "sparsity": self.sparsity}
        return {**asdict(self), **totals, "layers": layers}

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
