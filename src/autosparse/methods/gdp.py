"""GDP: a gate before every layer that reads channels, polarised by a shrinking epsilon, against the price of FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autosparse.layer import Layer
from autosparse.methods.families.base import About, Method, Run, Stateful, Traits, layer_parts, part, require
from autosparse.methods.families.channel_budget import ChannelBudget
from autosparse.methods.families.learned_mask import learned_tensor
from autosparse.methods.registry import register
from autosparse.methods.threesp import channel_notes
from autosparse.parametrizations import SparseParametrization
from autosparse.structure.wiring import Wiring, along, wire

OWNERS = "_owners"


class Gates(SparseParametrization):
    """w * g on the inputs, with zeros for outputs whose gate is closed.

    A gate belongs to the first layer that reads its channel; further readers, and the layers that make it, ask that one.
    """

    epsilon: Tensor
    open: Tensor

    def __init__(self, weight: Tensor, owned: int, theta_init: float, epsilon: float) -> None:
        super().__init__(weight)
        self.theta = learned_tensor(weight, (owned,), theta_init) if owned else None
        dtype = torch.promote_types(weight.dtype, torch.float32)
        self.register_buffer("epsilon", torch.full((1,), epsilon, dtype=dtype, device=weight.device))
        self.scale = 1 + epsilon / theta_init**2  # at the start the effective weight is the weight itself
        self.register_buffer("open", torch.ones(owned, dtype=torch.bool, device=weight.device))
        self.sources: list[tuple[int, Gates, str]] = []  # dimension, owner of the gates, name of the index

    def ask(self, dim: int, owner: Gates, index: np.ndarray[Any, Any]) -> None:
        """Let slices along a dimension have gates of a layer: a place among them for each slice, -1 for none."""
        name = f"index_{len(self.sources)}"
        self.register_buffer(name, torch.from_numpy(index).to(self.epsilon.device), persistent=False)
        self.sources.append((dim, owner, name))

    def gates(self) -> Tensor:
        """g = theta^2 / (theta^2 + epsilon) of the gates that this layer owns, 0 once closed."""
        assert self.theta is not None
        square = self.theta.square()
        return square / (square + self.epsilon) * self.open

    def along(self, dim: int, size: int, scale: float = 1.0) -> Tensor:
        """The gate of every slice along a dimension, scaled; 1 where there is none."""
        result = torch.ones(size, dtype=self.epsilon.dtype, device=self.epsilon.device)
        for other, owner, name in self.sources:
            if other == dim:
                index = getattr(self, name)
                result = torch.where(index >= 0, owner.gates()[index.clamp_min(0)] * scale, result)
        return result

    def factor(self, shape: Sequence[int], reads: int | None) -> Tensor:
        """What the weight is multiplied with: gates of the inputs, and 0 or 1 for the outputs."""
        factor = torch.ones((1,) * len(shape), dtype=self.epsilon.dtype, device=self.epsilon.device)
        for dim in sorted({dim for dim, _, _ in self.sources}):
            values = self.along(dim, shape[dim], self.scale)
            factor = factor * along(values if dim == reads else (values != 0).to(values.dtype), dim, len(shape))
        return factor

    reads: int | None = None

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.factor(weight.shape, self.reads).to(weight.dtype)

    def active(self, weight: Tensor) -> Tensor:
        return (self.factor(weight.shape, self.reads).detach() != 0).expand(weight.shape) & (weight != 0)

    def gradient_floor(self) -> float:
        return 0.0


@register
class GDP(Method):
    """A gate per channel with a shrinking epsilon; FLOPs are part of the loss; whole channels go.

    Channels are priced by the FLOPs that they cost together with their neighbours; closed gates are removed.
    """

    about = About(
        name="gdp",
        year=2021,
        family="learned budgets",
        pruned_gradient="none",
        train_flops="3 f_S",
        reference="Guo et al., GDP: Stabilized Neural Network Pruning via Gates with Differentiable Polarization, ICCV 2021",
    )
    # the guard holds densities of single weights; here a layer keeps its last channel by itself
    facts = Traits(learned_decay=0.0, guarded=False, needs_example=True)

    penalty_weight: float = 1.0
    flops: float | None = None
    theta_init: float = 1.0
    epsilon: float = 0.1
    final_epsilon: float = 1e-3
    closed_below: float = 0.01

    def __post_init__(self) -> None:
        require(self.penalty_weight >= 0, f"penalty_weight = {self.penalty_weight}; it must be at least 0")
        require(
            self.flops is None or 0 < self.flops <= 1,
            f"flops = {self.flops}; it is the share of FLOPs at which the price ends: 0 < flops <= 1",
        )
        require(self.theta_init > 0, f"theta_init = {self.theta_init}; it must be above 0, where gates are closed")
        require(
            0 < self.final_epsilon <= self.epsilon,
            f"epsilon = {self.epsilon} falls to final_epsilon = {self.final_epsilon}; both above 0, the last not larger",
        )
        require(0 < self.closed_below < 1, f"closed_below = {self.closed_below}; it is a gate's value: above 0 and below 1")

    def parts(self, sp: Run) -> dict[str, Stateful]:
        return {"wiring": wire(sp.model, sp.layers, sp.example_input, self.about.name)}

    def owners(self, wiring: Wiring, sp: Run) -> dict[int, tuple[str, int]]:
        """For every channel the layer that owns its gate, the first to read it, and the place among that layer's gates."""
        known: dict[int, tuple[str, int]] | None = vars(wiring).get(OWNERS)
        if known is not None:
            return known
        owners: dict[int, tuple[str, int]] = {}
        counts: dict[str, int] = {}
        for name in sp.layer_order:
            slices = wiring.layers[name]
            for channel in slices.of(slices.reads):
                if channel not in owners:
                    owners[channel] = name, counts.get(name, 0)
                    counts[name] = counts.get(name, 0) + 1
        vars(wiring)[OWNERS] = owners  # asked for at every step
        return owners

    def parametrization(self, layer: Layer, sp: Run) -> Gates:
        owners = self.owners(sp.parts["wiring"], sp)
        owned = sum(name == layer.name for name, _ in owners.values())
        return Gates(layer.stored, owned, self.theta_init, self.epsilon)

    def start(self, sp: Run) -> None:
        for _, gates in layer_parts(sp, Gates):
            if gates.theta is not None:
                gates.theta.data.fill_(self.theta_init)
            gates.open.fill_(True)
            gates.epsilon.fill_(self.epsilon)
        self.connect(sp)

    def connect(self, sp: Run) -> None:
        """Tell every layer whose gates its slices have."""
        wiring: Wiring = sp.parts["wiring"]
        owners, by_name = self.owners(wiring, sp), {layer.name: layer for layer in sp.layers}
        for layer, gates in layer_parts(sp, Gates):
            slices = wiring.layers[layer.name]
            gates.reads = slices.reads
            if gates.sources:
                continue
            for dim, ids in slices.cut():
                for owner in dict.fromkeys(owners[channel][0] for channel in ids[ids >= 0].tolist()):
                    index = [owners[each][1] if each >= 0 and owners[each][0] == owner else -1 for each in ids.tolist()]
                    gates.ask(dim, part(by_name[owner], Gates), np.array(index))

    def penalty(self, sp: Run) -> Tensor:
        """lambda * FLOPs, bilinear in the gates on both sides of every layer, above the target if there is one."""
        share = self.smooth_flops(sp)
        return self.penalty_weight * (share if self.flops is None else (share - self.flops).clamp_min(0))

    def smooth_flops(self, sp: Run) -> Tensor:
        """The share of FLOPs with gates in the place of 0 and 1."""
        profile = sp.ledger.known_profile()
        wiring: Wiring = sp.parts["wiring"]
        left, counted = [], 0.0
        for layer, gates in layer_parts(sp, Gates):
            macs = profile.macs_of(layer.name)
            counted += macs
            share = torch.full((), float(macs), dtype=gates.epsilon.dtype, device=gates.epsilon.device)
            for dim, _ in wiring.layers[layer.name].cut():
                share = share * gates.along(dim, layer.shape[dim]).mean()
            left.append(share)
        for name, products in ChannelBudget.of(wiring, sp.layers, profile).products.items():
            counted += products
            left.append(products * self._open_heads(wiring.heads[name], sp))
        return (torch.stack(left).sum() + (profile.macs - counted)) / profile.macs

    def _open_heads(self, heads: Any, sp: Run) -> Tensor:
        """The mean gate of attention heads."""
        owners, by_name = self.owners(sp.parts["wiring"], sp), {layer.name: part(layer, Gates) for layer in sp.layers}
        one = torch.ones((), dtype=torch.float32, device=sp.layers[0].stored.device)
        gates = [by_name[owners[each][0]].gates()[owners[each][1]] if each >= 0 else one for each in heads.tolist()]
        return torch.stack(gates).mean()

    def end_epoch(self, sp: Run, loss: float | None) -> None:
        self.close(sp)
        progress = min(1.0, (sp.epoch + 1) / max(1, sp.epochs - 1))
        value = self.epsilon * (self.final_epsilon / self.epsilon) ** progress
        for _, gates in layer_parts(sp, Gates):
            gates.epsilon.fill_(value)

    def close(self, sp: Run) -> None:
        """Gates that have all but closed do so for good; the widest of a layer stays open."""
        wiring: Wiring = sp.parts["wiring"]
        owners, by_name = self.owners(wiring, sp), {layer.name: part(layer, Gates) for layer in sp.layers}
        values = {name: gates.gates().detach().cpu() for name, gates in by_name.items() if gates.theta is not None}
        kept = np.array([float(values[name][place]) for name, place in (owners[each] for each in range(wiring.count))])
        closing = kept < self.closed_below
        for slices in wiring.layers.values():
            for _, ids in slices.cut():
                if bool((ids >= 0).all()) and bool(closing[ids].all()):
                    closing[ids[int(kept[ids].argmax())]] = False
        for channel in np.flatnonzero(closing).tolist():
            name, place = owners[channel]
            by_name[name].open[place] = False
        profile = sp.ledger.known_profile()
        sp.ledger.set_product_densities(ChannelBudget.of(wiring, sp.layers, profile).product_densities(~closing))

    def notes(self, sp: Run) -> list[str]:
        return channel_notes(sp.parts["wiring"])
