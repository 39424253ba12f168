"""What a model costs: one row per layer, for one sample."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from autosparse.common.tables import Table
from autosparse.common.words import did_you_mean


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

    def order(self, names: Collection[str]) -> list[str]:
        """These weights in the order in which the data reaches them; a tied one wherever it is used, others left out."""
        owners = (layer.name if layer.name in names else layer.tied_to for layer in self.layers)
        return [owner for owner in owners if owner is not None and owner in names]

    def inference_fraction(self, densities: Mapping[str, float]) -> float:
        """MACs at the given densities over dense MACs; layers not named are dense."""
        names = {layer.name for layer in self.layers} | {layer.tied_to for layer in self.layers if layer.tied_to}
        for name, density in densities.items():
            if name not in names:
                hint = did_you_mean(name, sorted(names), "; see profile.layers")
                raise ValueError(f"the profile has no layer {name!r}{hint}")
            if not 0 <= density <= 1:
                raise ValueError(f"the density of {name!r} is {density}; it must lie in [0, 1]")
        if not self.macs:
            return math.nan
        return sum(layer.macs * density_of(layer, densities) for layer in self.layers) / self.macs

    def __str__(self) -> str:
        shapes = ["x".join(map(str, layer.shape)) if layer.shape else "-" for layer in self.layers]
        rows = [
            (layer.name, layer.kind, shape, layer.params, layer.macs) for layer, shape in zip(self.layers, shapes, strict=True)
        ]
        totals = ("total", "", "", self.params, self.macs)
        return Table(("layer", "kind", "shape", "params", "MACs"), rows, totals).text()


def density_of(layer: LayerCost, densities: Mapping[str, float]) -> float:
    """A layer's density under its own name or the name it is tied to; 1 when neither is given."""
    if layer.name in densities:
        return float(densities[layer.name])
    return float(densities.get(layer.tied_to, 1.0)) if layer.tied_to else 1.0
