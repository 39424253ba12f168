"""What a model costs: one row a layer, per sample."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerCost:
    """One weight tensor, or the activation products of one module (shape None, no parameters)."""

    name: str
    kind: str
    params: int
    macs: int
    shape: tuple[int, ...] | None = None
    first: bool = False  # the data reaches it before any parameter does: its input needs no gradient
    tied_to: str | None = None  # the first name in the model of a weight that several modules share


@dataclass(frozen=True)
class Profile:
    """The layers in the order in which the data reaches them; layers without MACs are left out."""

    layers: tuple[LayerCost, ...]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one sample's forward pass."""
        return sum(layer.macs for layer in self.layers)

    @property
    def params(self) -> int:
        """Weight elements without biases; a shared weight counts once."""
        return sum({layer.tied_to or layer.name: layer.params for layer in self.layers}.values())

    def macs_of(self, name: str) -> int:
        """MACs of a weight wherever it is used, its ties included; 0 for one that is never reached."""
        return sum(layer.macs for layer in self.layers if name in (layer.name, layer.tied_to))

    def inference_fraction(self, densities: Mapping[str, float]) -> float:
        """MACs at the given densities over dense MACs; layers not named are dense."""
        known = {layer.name for layer in self.layers} | {layer.tied_to for layer in self.layers if layer.tied_to}
        for name, density in densities.items():
            if name not in known:
                near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
                hint = f"did you mean {' or '.join(repr(each) for each in near)}?" if near else "see profile.layers"
                raise ValueError(f"the profile has no layer {name!r}; {hint}")
            if not 0 <= density <= 1:
                raise ValueError(f"the density of {name!r} is {density}; it must lie in [0, 1]")
        if not self.macs:
            return math.nan
        return sum(layer.macs * density_of(layer, densities) for layer in self.layers) / self.macs

    def __str__(self) -> str:
        rows = [("layer", "kind", "shape", "params", "MACs")]
        for layer in self.layers:
            shape = "x".join(map(str, layer.shape)) if layer.shape else "-"
            rows.append((layer.name, layer.kind, shape, f"{layer.params:,}", f"{layer.macs:,}"))
        rows.append(("total", "", "", f"{self.params:,}", f"{self.macs:,}"))
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column < 3 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


def density_of(layer: LayerCost, densities: Mapping[str, float]) -> float:
    """A layer's density under its own name or the name it is tied to; 1 when neither is given."""
    if layer.name in densities:
        return float(densities[layer.name])
    return float(densities.get(layer.tied_to, 1.0)) if layer.tied_to else 1.0
