"""What channels cost, and which ones go until a budget is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autosparse.cost import Profile
from autosparse.layer import Layer
from autosparse.structure.wiring import Wiring

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class ChannelBudget:
    """MACs and weights of the layers whose channels may go, and MACs of everything else in the network."""

    wiring: Wiring
    macs: dict[str, float]
    weights: dict[str, float]
    other_macs: float
    products: dict[str, float]  # MACs of attention products, by module: they go with the heads

    @classmethod
    def of(cls, wiring: Wiring, layers: Sequence[Layer], profile: Profile) -> ChannelBudget:
        macs = {layer.name: float(profile.macs_of(layer.name)) for layer in layers}
        products = {row.name: float(row.macs) for row in profile.layers if row.name in wiring.heads}
        other = profile.macs - sum(macs.values()) - sum(products.values())
        return cls(wiring, macs, {layer.name: float(layer.numel) for layer in layers}, other, products)

    def macs_per_channel(self) -> Numbers:
        """The MACs of a channel in the whole network: its own filters, and its share of the layers that read it."""
        total = np.zeros(self.wiring.count)
        for name, slices in self.wiring.layers.items():
            for _, ids in slices.cut():
                np.add.at(total, ids[ids >= 0], self.macs[name] / len(ids))
        for name, macs in self.products.items():
            ids = self.wiring.heads[name]
            np.add.at(total, ids[ids >= 0], macs / len(ids))
        return np.maximum(total, 1e-12)

    def flops(self, kept: Flags | Numbers) -> float:
        """The share of the network's MACs that is left; `kept` may hold shares of channels."""
        left = sum(macs * self.wiring.shares(kept, name) for name, macs in self.macs.items())
        left += sum(macs * _mean(kept, self.wiring.heads[name]) for name, macs in self.products.items())
        whole = sum(self.macs.values()) + sum(self.products.values()) + self.other_macs
        return (left + self.other_macs) / whole

    def product_densities(self, kept: Flags) -> dict[str, float]:
        """The share of attention products that is left, by their names in the profile."""
        return {name: _mean(kept, self.wiring.heads[name]) for name in self.products}

    def weight_share(self, kept: Flags | Numbers) -> float:
        """The share of the run's weights that is left."""
        left = sum(count * self.wiring.shares(kept, name) for name, count in self.weights.items())
        return left / sum(self.weights.values())

    def remove(self, order: Sequence[int] | Any, flops: float | None = None, weights: float | None = None) -> Flags:
        """Remove channels in this order until at most this share is left; no layer loses its last one."""
        kept = np.ones(self.wiring.count, dtype=bool)
        left = [(ids, int((ids < 0).sum()) + len(np.unique(ids[ids >= 0]))) for ids in self._sides()]
        sides: dict[int, list[int]] = {}
        counts = [count for _, count in left]
        for place, (ids, _) in enumerate(left):
            for channel in np.unique(ids[ids >= 0]).tolist():
                sides.setdefault(channel, []).append(place)
        limit = flops if flops is not None else weights
        assert limit is not None
        share = self.flops if flops is not None else self.weight_share
        for channel in np.asarray(order).tolist():
            if share(kept) <= limit + 1e-12:
                break
            if all(counts[place] > 1 for place in sides.get(channel, [])):
                kept[channel] = False
                for place in sides.get(channel, []):
                    counts[place] -= 1
        return kept

    def _sides(self) -> list[Any]:
        return [ids for slices in self.wiring.layers.values() for _, ids in slices.cut()]


def _mean(kept: Flags | Numbers, ids: Any) -> float:
    return float(np.where(ids >= 0, np.asarray(kept, dtype=float)[np.maximum(ids, 0)], 1.0).mean())
