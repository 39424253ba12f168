"""How a target sparsity steers thresholds: the common factor that its controller asks for, and a shared start."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from autosparse import functional
from autosparse.common.tensors import assign, kth_smallest, start_bound, threshold_for, whole
from autosparse.layer import Layer
from autosparse.methods.target import TargetController
from autosparse.parametrizations import SoftThreshold

SAMPLE = 1_000_000  # weights that a quantile over the whole net looks at: 0.03 points of error at 90 %
LARGEST_S = -0.02  # a factor can only move an s below 0, so T stays under 1/2 (sigmoid) or 1 (exp)
SMALLEST_T = 1e-8  # the same for g = identity
MOST_NATS = 50.0  # that one move may take, where the controller sets no limit

Soft = tuple[Layer, SoftThreshold]
Counts = dict[str, float]  # what a weight of a layer counts towards the target


def refresh_reach(layers: Sequence[Soft]) -> None:
    """Renew the top-B sets of backward sparsity from the present weights."""
    for layer, soft in layers:
        if soft.backward_bound is not None:
            soft.refresh_backward_bound(layer.weight())


def start_together(layers: Sequence[Soft], sparsity: float, generator: torch.Generator, in_spreads: bool = False) -> None:
    """One shared threshold: the quantile of all |w| of the net, or of |w| in units of each layer's spread."""
    units = [_spread(layer) if in_spreads else 1.0 for layer, _ in layers]
    magnitudes = [
        soft.magnitudes(layer.weight()).reshape(-1)[_sample(layer, layers, generator)].float() for layer, soft in layers
    ]
    sample = torch.cat([values / unit for values, unit in zip(magnitudes, units, strict=True)])
    bound = start_bound(sample, round(sparsity * sample.numel()))
    for (_, soft), unit in zip(layers, units, strict=True):
        soft.set_threshold(bound * unit)


def _spread(layer: Layer) -> float:
    """ST-3's expected spread of a layer's weights: 1 / sqrt of the sum of its sizes."""
    return 1 / math.sqrt(sum(layer.shape))


def steer(
    layers: Sequence[Soft],
    controller: TargetController,
    step: int,
    floor: float,
    generator: torch.Generator,
    units: Sequence[float] | None = None,
) -> int:
    """Bring the overall sparsity to the ramp's, as far as the controller allows; returns how many weights it had to zero.

    `units` say what a weight of each layer counts, where that differs. Late in the run a sparsity that is still missed is
    insisted on: without a limit, and by zeroing the smallest weights where no threshold can rise as far.
    """
    counts = _counts(layers, units)
    planned = controller.sparsity_at(step)
    factor = _move(layers, counts, planned, floor, generator, controller.limit)
    reached, zeroed = _sparsity(layers, counts), 0
    if controller.insists(step, reached):
        factor *= _move(layers, counts, planned, floor, generator, _unlimited)
        zeroed = _zero_smallest(layers, counts, (planned - _sparsity(layers, counts)) * _total(layers, counts), floor)
        reached = _sparsity(layers, counts)
    controller.record(step, planned, reached, factor)
    return zeroed


def zero_smallest(layers: Sequence[Soft], count: int, floor: float) -> int:
    """Zero this many active weights, the smallest in units of their threshold; how many it were."""
    return _zero_smallest(layers, _counts(layers, None), float(count), floor)


def sparsity_in(layers: Sequence[Soft], units: Sequence[float] | None) -> float:
    """The fraction that is gone, where a weight of each layer counts as `units` say."""
    return _sparsity(layers, _counts(layers, units))


def _counts(layers: Sequence[Soft], units: Sequence[float] | None) -> Counts:
    """What a weight of each layer counts, by its name; all the same are ones, for which order statistics need no sort."""
    names = [layer.name for layer, _ in layers]
    return dict.fromkeys(names, 1.0) if units is None else dict(zip(names, units, strict=True))


def _move(
    layers: Sequence[Soft],
    counts: Counts,
    planned: float,
    floor: float,
    generator: torch.Generator,
    limit: Callable[[float], float],
) -> float:
    """Multiply every s by the one factor that gives the overall sparsity; layers at the density floor stay there."""
    frozen = {layer.name for (layer, _), density in zip(layers, _densities(layers), strict=True) if density <= floor}
    factor = 1.0
    for _, soft in layers:
        _into_range(soft)
    before = {layer.name: whole(soft.threshold.detach()).clone() for layer, soft in layers}
    for _ in range(len(layers)):
        free = [pair for pair in layers if pair[0].name not in frozen and counts[pair[0].name] > 0]
        if not free:
            break
        apart = [pair for pair in layers if pair[0].name in frozen]
        keep = (1 - planned) * _total(layers, counts) - _active(apart, counts)
        share = min(1.0, max(0.0, keep / _total(free, counts)))
        factor = _factor(free, counts, share, generator, before)
        if free[0][1].is_learned:  # no loss pushes back against the others: they go where they should at once
            factor = limit(factor)
        for layer, soft in layers:
            if layer.name not in frozen:
                assign(soft.threshold, before[layer.name] * factor)
        moved = [pair for pair in layers if pair[0].name not in frozen]
        sunk = [pair for pair, density in zip(moved, _densities(moved), strict=True) if density < floor]
        if not sunk:
            break
        for layer, soft in sunk:
            soft.limit_density(layer.weight(), floor)
            frozen.add(layer.name)
    return factor


def _unlimited(factor: float) -> float:
    """Any factor above 0; a weight beyond the range of g asks for one below."""
    return min(math.exp(MOST_NATS), max(math.exp(-MOST_NATS), factor))


def _zero_smallest(layers: Sequence[Soft], counts: Counts, missing: float, floor: float) -> int:
    """Zero active weights, the smallest in units of their threshold, until they count as much as is missing; how many."""
    if missing < 0.5 * min(counts.values()):
        return 0
    ratios = [_ratios_to_threshold(layer, soft, floor) for layer, soft in layers]
    flat = torch.cat([ratio.reshape(-1) for ratio in ratios])
    count = int(torch.count_nonzero(flat.isfinite()))
    if _is_even(counts):
        count = min(round(missing), count)
    elif count:
        amounts = torch.cat([torch.full((layer.numel,), counts[layer.name], device=flat.device) for layer, _ in layers])
        count = min(_reaching(amounts[flat.argsort()], missing), count)
    if count == 0:
        return 0
    cut = kth_smallest(flat, count)
    for (layer, _), ratio in zip(layers, ratios, strict=True):
        assign(layer.stored, layer.weight().masked_fill(ratio <= cut, 0))
    return count


def _ratios_to_threshold(layer: Layer, soft: SoftThreshold, floor: float) -> Tensor:
    """|w| / T where a weight is active and the layer can spare it, infinity elsewhere."""
    weight = layer.weight()
    magnitudes = soft.magnitudes(weight).to(soft.threshold.dtype)
    spared = soft.active(weight) & (magnitudes <= threshold_for(magnitudes, floor))
    return (magnitudes / soft.threshold_values()).masked_fill(~spared, math.inf)


def _factor(free: Sequence[Soft], counts: Counts, share: float, generator: torch.Generator, before: dict[str, Tensor]) -> float:
    """The factor on s that leaves this share of the given layers: one order statistic of |w| measured in units of s."""
    ratios, amounts = [], []
    for layer, soft in free:
        index = _sample(layer, free, generator)
        magnitudes = soft.magnitudes(layer.weight()).reshape(-1)[index].to(soft.threshold.dtype)
        units = before[layer.name].expand(layer.shape).reshape(-1)[index]
        ratios.append(functional.threshold_inverse(magnitudes, soft.function) / units)
        amounts.append((counts[layer.name], ratios[-1].numel()))
    everything = torch.cat(ratios)
    # sigmoid and exp: s < 0, pruned where the ratio is at least the factor. identity: s > 0, pruned where it is at most that.
    rises = free[0][1].function == "identity"
    if _is_even(counts):
        keep = round(share * everything.numel())
        position = everything.numel() - keep if rises else keep
    else:
        each = [torch.full((number,), count, dtype=torch.float64, device=everything.device) for count, number in amounts]
        ordered = torch.cat(each)[everything.argsort()]
        position = _reaching(ordered, float(ordered.sum()) * (1 - share if rises else share))
    smallest = everything.min() if position <= 0 else kth_smallest(everything, position)
    if position <= 0:
        return float(smallest) * (0.5 if rises else 1.0)
    if position >= everything.numel():
        return float(smallest) * (1.0 if rises else 2.0)
    return float((smallest + kth_smallest(everything, position + 1)) / 2)


def _reaching(amounts: Tensor, wanted: float) -> int:
    """How many of the first amounts come nearest to `wanted`."""
    sums = amounts.double().cumsum(0)
    place = int(torch.searchsorted(sums, wanted))
    if place >= len(sums):
        return len(sums)
    below = float(sums[place - 1]) if place else 0.0
    return place + 1 if float(sums[place]) - wanted < wanted - below else place


def _is_even(counts: Counts) -> bool:
    return len(set(counts.values())) == 1


def _sample(layer: Layer, layers: Sequence[Soft], generator: torch.Generator) -> Tensor | slice:
    total = sum(other.numel for other, _ in layers)
    if total <= SAMPLE:
        return slice(None)
    count = math.ceil(layer.numel * SAMPLE / total)
    return torch.randint(layer.numel, (count,), generator=generator).to(layer.stored.device)


def _into_range(soft: SoftThreshold) -> None:
    value = whole(soft.threshold.detach())
    assign(soft.threshold, value.clamp_min(SMALLEST_T) if soft.function == "identity" else value.clamp_max(LARGEST_S))


def _densities(layers: Sequence[Soft]) -> list[float]:
    """Densities of all these layers; one sync."""
    counts = torch.stack([soft.count_active(layer.weight()) for layer, soft in layers]).tolist() if layers else []
    return [count / layer.numel for (layer, _), count in zip(layers, counts, strict=True)]


def _sparsity(layers: Sequence[Soft], counts: Counts) -> float:
    return 1 - _active(layers, counts) / _total(layers, counts)


def _total(layers: Sequence[Soft], counts: Counts) -> float:
    return sum(layer.numel * counts[layer.name] for layer, _ in layers)


def _active(layers: Sequence[Soft], counts: Counts) -> float:
    densities = zip(layers, _densities(layers), strict=True)
    return sum(density * layer.numel * counts[layer.name] for (layer, _), density in densities)
