"""The ledger of training FLOPs: what every optimizer step has spent, against a dense run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from autosparse.cost.layers import LayerCost, Profile

_CONVENTIONS = ("paper", "exact")
_PASSES = 3  # forward, input gradient, weight gradient


class Ledger:
    """Adds up the densities of the three passes of every sparsified layer; MACs come in only when a number is read.

    `convention="paper"` counts three passes for every layer, `"exact"` no input gradient where none is needed.
    `baseline_steps` is the length of the dense run to compare with; without it, the steps so far.
    """

    def __init__(self, layer_names: Sequence[str], convention: str = "paper", baseline_steps: int | None = None) -> None:
        if convention not in _CONVENTIONS:
            raise ValueError(f"convention must be one of {', '.join(_CONVENTIONS)}, not {convention!r}")
        if baseline_steps is not None and baseline_steps < 1:
            raise ValueError(f"baseline_steps must be at least 1, not {baseline_steps}")
        if len(set(layer_names)) != len(layer_names):
            raise ValueError(f"layer names must differ: {', '.join(layer_names)}")
        self.layer_names = tuple(layer_names)
        self.convention = convention
        self.baseline_steps = baseline_steps
        self.profile: Profile | None = None
        self.steps = 0  # optimizer steps added so far, reference steps not included
        self.dense_steps = 0.0  # reference steps at the full dense cost
        self._sums = torch.zeros(_PASSES, len(self.layer_names), dtype=torch.float64)
        self._numbers: list[list[float]] | None = None  # the same as numbers, while steps give numbers
        self._products: dict[str, float] = {}  # densities of activation products now: 1 unless attention heads are gone
        self._saved_products: dict[str, float] = {}  # steps' worth of them that was not spent

    def set_profile(self, profile: Profile) -> None:
        """Give the MACs; steps added before count with them too."""
        self.profile = profile

    def add(self, densities: Tensor | Sequence[Sequence[float]]) -> None:
        """Add one optimizer step: densities of shape (3, layers) for forward, input- and weight-gradient; no sync."""
        if not isinstance(densities, Tensor):  # numbers are added without torch, which takes longer for few layers
            sums = self._lists()
            self._numbers = [[*map(float.__add__, *rows)] for rows in zip(sums, densities, strict=True)]
        elif densities.shape != self._sums.shape:
            raise ValueError(
                f"densities have shape {tuple(densities.shape)}; expected {tuple(self._sums.shape)}: "
                "forward, input-gradient and weight-gradient rows, one column per sparsified layer"
            )
        else:
            if self._numbers is not None:
                self._sums, self._numbers = torch.tensor(self._numbers, dtype=torch.float64), None
            if self._sums.device != densities.device:
                self._sums = self._sums.to(densities.device)
            self._sums += densities.detach()
        self.steps += 1
        for name, density in self._products.items():
            self._saved_products[name] = self._saved_products.get(name, 0.0) + 1 - density

    def _lists(self) -> list[list[float]]:
        return self._sums.tolist() if self._numbers is None else self._numbers

    def set_product_densities(self, densities: Mapping[str, float]) -> None:
        """Give the share of activation products that is computed from now on, by their names in the profile."""
        self._products = dict(densities)

    def add_dense_steps(self, count: float) -> None:
        """Add reference steps at the full dense cost: spent, but no part of the baseline."""
        if count < 0:
            raise ValueError(f"the number of dense steps must be at least 0, not {count}")
        self.dense_steps += count

    @property
    def train_fraction(self) -> float:
        """Train F: what was spent over what the dense baseline spends; nan before the first step."""
        profile = self.known_profile()
        steps = self.steps if self.baseline_steps is None else self.baseline_steps
        baseline = steps * sum(layer.macs * self._passes(layer) for layer in profile.layers)
        return math.fsum(self._spent(profile).values()) / baseline if baseline else math.nan

    def test_fraction(self, densities: Sequence[float]) -> float:
        """Test F: inference MACs at the given densities of the sparsified layers over dense MACs."""
        profile = self.known_profile()
        if len(densities) != len(self.layer_names):
            raise ValueError(f"{len(densities)} densities for {len(self.layer_names)} sparsified layers")
        reached = {layer.name for layer in profile.layers} | {layer.tied_to for layer in profile.layers}
        pairs = zip(self.layer_names, densities, strict=True)
        known = {name: float(density) for name, density in (*pairs, *self._products.items()) if name in reached}
        return profile.inference_fraction(known)

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and numbers; exact."""
        return {
            "layer_names": list(self.layer_names),
            "steps": self.steps,
            "dense_steps": self.dense_steps,
            "sums": self._lists(),
            "profile": None if self.profile is None else [asdict(layer) for layer in self.profile.layers],
            **({"products": [dict(self._products), dict(self._saved_products)]} if self._products else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved ledger of the same layers; a profile known here is kept when none was saved."""
        missing = [key for key in self.state_dict() if key not in state and key != "products"]
        if missing:
            raise ValueError(f"the ledger's state lacks {', '.join(missing)}")
        saved = tuple(state["layer_names"])
        if saved != self.layer_names:
            only_saved = [name for name in saved if name not in self.layer_names]
            only_here = [name for name in self.layer_names if name not in saved]
            raise ValueError(
                f"the saved ledger is of other layers: only saved: {only_saved}, only here: {only_here}"
                + ("" if only_saved or only_here else "; their order differs")
            )
        self.steps = int(state["steps"])
        self.dense_steps = float(state["dense_steps"])
        products, saved = state.get("products", ({}, {}))
        self._products, self._saved_products = dict(products), dict(saved)
        sums = torch.tensor(state["sums"], dtype=torch.float64)
        self._numbers = None
        self._sums = sums.reshape(_PASSES, len(self.layer_names)).to(self._sums.device)
        if state["profile"] is not None:
            shapes = (None if row["shape"] is None else tuple(row["shape"]) for row in state["profile"])
            rows = zip(state["profile"], shapes, strict=True)
            self.profile = Profile(tuple(LayerCost(**{**row, "shape": shape}) for row, shape in rows))

    def known_profile(self) -> Profile:
        """The profile, or an error that says how to give it."""
        if self.profile is None:
            raise RuntimeError(
                "the MACs are not known yet: pass example_input to sparsify, or run one eager forward pass first"
            )
        return self.profile

    def _passes(self, layer: LayerCost) -> int:
        return _PASSES if self._has_input_gradient(layer) else _PASSES - 1

    def _has_input_gradient(self, layer: LayerCost) -> bool:
        return self.convention == "paper" or not layer.first

    def _spent(self, profile: Profile) -> dict[str, float]:
        """MACs by layer: macs x summed densities, reference steps included."""
        columns = dict(zip(self.layer_names, zip(*self._lists(), strict=True), strict=True))
        dense = (float(self.steps),) * _PASSES
        spent = {}
        for layer in profile.layers:
            by_tie = columns.get(layer.tied_to, dense) if layer.tied_to else dense
            forward, input_gradient, weight_gradient = columns.get(layer.name, by_tie)
            if layer.name in self._saved_products:
                forward = input_gradient = weight_gradient = forward - self._saved_products[layer.name]
            density_steps = forward + weight_gradient
            if self._has_input_gradient(layer):
                density_steps += input_gradient
            spent[layer.name] = layer.macs * (density_steps + self.dense_steps * self._passes(layer))
        return spent
