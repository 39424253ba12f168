"""What a run of learned thresholds is steered to: zeros, multiply-adds, bytes or milliseconds. One goal per run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from autosparse.common.tensors import is_sharded, whole
from autosparse.common.warnings import warn
from autosparse.cost import size
from autosparse.layer import Layer
from autosparse.methods.families.base import Run, require
from autosparse.methods.target import MISS
from autosparse.quantization.affine import quantize_weight, weight_scales

BELOW = 0.998  # the part of a size that is aimed at: what a forecast of the mask's bytes misses must not exceed it
STEPS = 50  # of a bisection
LATER = 0.02  # the part of a latency that may be exceeded
EXAMPLES = {
    "target_sparsity": "0.9 means 90 % zeros",
    "target_flops": "0.15 means 15 % of the dense model's multiply-adds",
    "max_loss_increase": "0.01 means a loss 1 % above the dense run's",
}


@dataclass(frozen=True)
class SparsityGoal:
    """A fraction of zeros; also the base of the other goals."""

    asked: float
    field = "target_sparsity"

    def check(self, sp: Run) -> None:
        """Refuse what the run cannot reach."""
        floor = sp.density_floor
        require(
            self.asked <= 1 - floor,
            f"target_sparsity = {self.asked} cannot be met while every layer keeps a density of {floor}: "
            f"pass density_floor below {1 - self.asked:.4g} to sparsify",
        )

    def learn(self, sp: Run) -> None:
        """Find out once, at the first step, what the numbers below need."""

    def is_known(self, sp: Run) -> bool:
        """Whether the run knows what it needs for the numbers below."""
        return True

    def units(self, sp: Run) -> Sequence[float] | None:
        """What one active weight of every layer counts; None: all the same."""
        return None

    def sparsity(self, sp: Run) -> float:
        """The fraction that must be gone, in these units."""
        return self.asked

    def miss(self, sparsity: float) -> float:
        """The distance from this sparsity, in these units, that is too far."""
        return MISS

    def reached(self, sp: Run) -> float:
        """Where the run stands, in the units of the field."""
        return sp.sparsity()

    def is_met(self, sp: Run) -> bool:
        return self.reached(sp) >= self.asked - MISS

    def excess(self, sp: Run) -> int:
        """Active weights that must go at the very end."""
        return 0

    def text(self, value: float) -> str:
        return f"{value:.2%}"


@dataclass(frozen=True)
class LossGoal(SparsityGoal):
    """The most by which the loss of an epoch may exceed the dense run's, as a fraction."""

    field = "max_loss_increase"

    def check(self, sp: Run) -> None:
        """Any density can be held."""

    def reached(self, sp: Run) -> float:
        increase = sp.parts["controller"].increase
        return math.nan if increase is None else float(increase)

    def is_met(self, sp: Run) -> bool:
        return True


@dataclass(frozen=True)
class FlopsGoal(SparsityGoal):
    """Inference multiply-adds as a fraction of the dense model's (Test F)."""

    field = "target_flops"

    def check(self, sp: Run) -> None:
        if not self.is_known(sp):
            return
        dense, sparse = self._macs(sp)
        least = dense + sp.density_floor * sparse
        require(
            self.asked >= least,
            f"target_flops = {self.asked} cannot be met: layers that stay dense, and the density floor of the others, take "
            f"{least:.4g} of the multiply-adds; sparsify more layers, or ask for more",
        )

    def is_known(self, sp: Run) -> bool:
        return sp.ledger.profile is not None

    def units(self, sp: Run) -> Sequence[float]:
        profile = sp.ledger.known_profile()
        return [profile.macs_of(layer.name) / layer.numel for layer in sp.layers]

    def sparsity(self, sp: Run) -> float:
        dense, sparse = self._macs(sp)
        return 1 - (self.asked - dense) / sparse

    def _macs(self, sp: Run) -> tuple[float, float]:
        """The shares of dense and of sparsified layers in the dense model's multiply-adds."""
        profile = sp.ledger.known_profile()
        sparse = sum(profile.macs_of(layer.name) for layer in sp.layers) / profile.macs
        return 1 - sparse, sparse

    def reached(self, sp: Run) -> float:
        return sp.ledger.test_fraction(sp.densities()) if self.is_known(sp) else 1.0

    def is_met(self, sp: Run) -> bool:
        return self.reached(sp) <= self.asked + MISS


@dataclass(frozen=True)
class SizeGoal(SparsityGoal):
    """Bytes of the exported sparse file in a precision: never more, and a few less."""

    asked: int
    precision: str = "float32"
    field = "target_size"

    def check(self, sp: Run) -> None:
        fixed, total = self._fixed(sp), sum(layer.numel for layer in sp.layers)
        least = fixed + self._layers(sp.layers, [sp.density_floor] * len(sp.layers), [1.0] * len(sp.layers))
        if self.asked < least:
            raise ValueError(
                f"target_size = {self.text(self.asked)} cannot be met: in {self.precision} the file takes {self.text(least)} "
                f"when all {total} sparsified weights but the density floor of {sp.density_floor} are zero"
            )

    def miss(self, sparsity: float) -> float:
        return 0.003 * (1 - sparsity)  # half a point of all weights would be far too much of a small file

    def sparsity(self, sp: Run) -> float:
        """The zeros at which the file would have its size, if all layers shrank alike and masks stayed as clustered."""
        stored = [self._stored(layer) for layer in sp.layers]
        shares = [count / layer.numel for layer, (count, _) in zip(sp.layers, stored, strict=True)]
        clusters = [
            _clustering(layer.numel, share, masks) for layer, share, (_, masks) in zip(sp.layers, shares, stored, strict=True)
        ]
        room = BELOW * self.asked - self._fixed(sp)
        factor = _largest_factor(shares, lambda scaled: self._layers(sp.layers, scaled, clusters) > room)
        return max(0.0, 1 - factor * (1 - sp.sparsity()))

    def _stored(self, layer: Layer) -> tuple[int, int]:
        """Numbers of a layer that the file keeps, and bytes of its mask; int8 rounds small ones to zero."""
        kept = whole(layer.active())
        if self._width(layer) == size.WIDTHS["int8"]:
            weight = whole(layer.effective().detach())
            kept = quantize_weight(weight, weight_scales(weight)) != 0
        return int(kept.sum()), size.mask_bytes(kept)

    def _width(self, layer: Layer) -> int:
        """Bytes of one weight."""
        return size.width_and_scales(tuple(layer.shape), 4, self.precision)[0]

    def _layers(self, layers: Sequence[Layer], shares: Sequence[float], clusters: Sequence[float]) -> float:
        """Data bytes of the sparsified weights, of which these shares are stored."""
        total = 0.0
        for layer, share, cluster in zip(layers, shares, clusters, strict=True):
            masks = min(layer.numel / 8 + 1, cluster * _random_mask_bytes(layer.numel, share))
            total += size.tensor_bytes(layer.name, layer.numel, share * layer.numel, masks, self._width(layer))
        return total

    def _fixed(self, sp: Run) -> float:
        """Bytes of everything else: the header, scales, biases, norms, dense layers."""
        sparse = {layer.places[0].key: tuple(layer.shape) for layer in sp.layers}
        tied = [place.key for layer in sp.layers for place in layer.places[1:]]
        data = sum(size.width_and_scales(shape, 4, self.precision)[1] for shape in sparse.values())
        dense: dict[str, tuple[int, ...]] = {}
        places = set()
        for name, tensor in sp.model.state_dict().items():
            if name in sparse or name in tied or ".parametrizations." in f".{name}":
                continue
            has_place = tensor.numel() and not tensor.is_meta and not is_sharded(tensor)
            place = (tensor.data_ptr(), tensor.shape, tensor.stride()) if has_place else name
            if place in places:
                tied.append(name)
            else:
                places.add(place)
                dense[name] = tuple(tensor.shape)
                data += self._dense_bytes(tensor)
        return data + size.header_bytes(sparse, dense, tied, self.asked, self.precision)

    def _dense_bytes(self, tensor: Tensor) -> int:
        width, scales = tensor.element_size(), 0
        if tensor.is_floating_point():
            width, scales = size.width_and_scales(tuple(tensor.shape), width, self.precision)
        return tensor.numel() * width + scales

    def reached(self, sp: Run) -> float:
        """Bytes of the file as it would be now."""
        stored = [(layer, *self._stored(layer)) for layer in sp.layers]
        parts = [size.tensor_bytes(layer.name, layer.numel, count, masks, self._width(layer)) for layer, count, masks in stored]
        return self._fixed(sp) + sum(parts)

    def is_met(self, sp: Run) -> bool:
        return self.reached(sp) <= self.asked

    def excess(self, sp: Run) -> int:
        over = self.reached(sp) - self.asked
        if over <= 0:
            return 0
        active = sum(int(layer.count_active()) for layer in sp.layers)
        rounded = active - sum(self._stored(layer)[0] for layer in sp.layers)
        # those that int8 rounds to zero are likely to go first and free nothing: some of them in every round
        return math.ceil(over / size.WIDTHS[self.precision]) + rounded // 10

    def text(self, value: float) -> str:
        return f"{value / 1e6:.4g} MB"


@dataclass(frozen=True)
class LatencyGoal(SparsityGoal):
    """Milliseconds of the served model for one sample on one thread, as measured times of its layers add up."""

    precision: str = "float32"
    field = "target_latency"

    def check(self, sp: Run) -> None:
        require(
            sp.example_input is not None,
            "target_latency measures how long the model takes when it is served: pass sparsify an example_input",
        )
        if not self.is_known(sp):
            return
        least, most = (self._at(sp, [density] * len(sp.layers)) for density in (sp.density_floor, 1.0))
        require(
            self.asked >= least,
            f"target_latency = {self.asked} ms cannot be met: in {self.precision} the served model takes {least:.4g} ms at the "
            f"density floor of {sp.density_floor}, and {most:.4g} ms dense",
        )
        if self.asked >= most:
            warn(
                f"target_latency = {self.asked} ms is met without zeros: in {self.precision} the dense model takes "
                f"{most:.4g} ms when it is served; nothing is pruned"
            )

    def learn(self, sp: Run) -> None:
        sp.parts["latency"].learn(sp, self.precision)

    def is_known(self, sp: Run) -> bool:
        part = getattr(sp, "parts", {}).get("latency")  # a method is checked before the run has parts
        return part is not None and part.table is not None

    def miss(self, sparsity: float) -> float:
        return 0.01 * (1 - sparsity)

    def sparsity(self, sp: Run) -> float:
        """The zeros at which the model would take its time, if all layers shrank alike."""
        densities, sizes = sp.densities(), [layer.numel for layer in sp.layers]
        factor = _largest_factor(densities, lambda scaled: self._at(sp, scaled) > self.asked)
        kept = sum(factor * density * count for density, count in zip(densities, sizes, strict=True))
        return 1 - min(kept / sum(sizes), 1.0)

    def _at(self, sp: Run, densities: Sequence[float]) -> float:
        names, sizes = [layer.name for layer in sp.layers], [layer.numel for layer in sp.layers]
        return float(sp.parts["latency"].table.milliseconds(names, sizes, densities))

    def reached(self, sp: Run) -> float:
        return self._at(sp, sp.densities()) if self.is_known(sp) else math.inf

    def is_met(self, sp: Run) -> bool:
        return self.reached(sp) <= (1 + LATER) * self.asked

    def text(self, value: float) -> str:
        return f"{value:.4g} ms"


GOALS = {goal.field: goal for goal in (SparsityGoal, FlopsGoal, SizeGoal, LatencyGoal, LossGoal)}


def goal_of(fields: Mapping[str, Any]) -> SparsityGoal | None:
    """The one goal that is set among a method's fields, checked."""
    given = {name: fields[name] for name in GOALS if fields.get(name) is not None}
    require(len(given) < 2, f"{' and '.join(given)} both decide how sparse the run becomes: choose one")
    for name, value in given.items():
        if name == SizeGoal.field:
            return SizeGoal(size.bytes_of(value), fields["precision"])
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name == LatencyGoal.field:
            require(number and 0 < value < math.inf, f"{name} = {value!r}; it is in milliseconds, more than 0")
            return LatencyGoal(value, fields["precision"])
        allowed = EXAMPLES[name]
        require(number and 0 < value < 1, f"{name} = {value!r}; allowed: between 0 and 1, {allowed}")
        return GOALS[name](value)
    return None


def _largest_factor(densities: Sequence[float], is_too_much: Callable[[list[float]], bool]) -> float:
    """The largest factor on all densities, none of which exceeds 1, that is not too much; by bisection."""
    low, high = 0.0, 1 / max(max(densities), 1e-9)
    for _ in range(STEPS):
        factor = (low + high) / 2
        fits = not is_too_much([min(1.0, factor * density) for density in densities])
        low, high = (factor, high) if fits else (low, factor)
    return low


def _clustering(count: int, density: float, masks: int) -> float:
    """Bytes of a mask over what they would be if zeros fell at random."""
    expected = _random_mask_bytes(count, density)
    return masks / expected if expected >= 1 else 1.0


def _random_mask_bytes(count: int, density: float) -> float:
    return math.ceil(count / 8) * float(1 - (1 - density) ** 8)
