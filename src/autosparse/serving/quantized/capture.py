"""A captured graph in eight bits: which values to observe, and regions made from what was observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from autosparse.common.graphs import visit_values
from autosparse.kernels.library import Engine
from autosparse.serving.agreement import NARROW_TOLERANCE, DiffersError, by_how_much, relative
from autosparse.serving.capture import layer_name, module_of, shape_of
from autosparse.serving.choice import fastest
from autosparse.serving.example import Example
from autosparse.serving.kinds import is_linear
from autosparse.serving.native import ROUNDS, NativeRegion
from autosparse.serving.preparation import Preparation
from autosparse.serving.quantized.calibration import CalibrationError, ObservedInput, Quantization, observe_nodes, sample_of
from autosparse.serving.quantized.correction import Narrow, corrections, rounding_difference
from autosparse.serving.quantized.linear import ByteLinear
from autosparse.serving.quantized.region import ByteRegion
from autosparse.serving.quantized.steps import (
    Affine,
    Range,
    fuse_bytes,
    in_bfloat16,
    quantize,
    values_to_observe,
    why_not_bytes,
    with_corrections,
)
from autosparse.serving.regions import GraphRegion, find_regions
from autosparse.serving.signature import Signature
from autosparse.serving.steps import ConvolutionStep, Step

# Kernels further from the same integers in torch, as a fraction of a region's outputs, have a defect.
KERNEL_TOLERANCE = 0.1
# The float engine is tuned only where its first guess is at most this many times slower than tuned eight bits.
NEARLY = 1.5


@dataclass(frozen=True)
class Calibrated:
    """Ranges of a graph's values, what its linear layers read, and what the biases of its layers lack in eight bits."""

    quantization: Quantization
    ranges: dict[fx.Node, Range]
    linears: dict[fx.Node, ObservedInput]
    corrections: dict[fx.Node, Tensor] = field(default_factory=dict)  # of biases

    def corrections_in(self, region: GraphRegion) -> dict[int, Tensor]:
        """By the region's numbers of values."""
        return {value: self.corrections[node] for value, node in region.values.items() if node in self.corrections}

    def in_float(self, step: Step) -> bool:
        """Whether a step stays in float32."""
        return stays_in_float(step, self.quantization)


def stays_in_float(step: Step, quantization: Quantization) -> bool:
    return step.name in quantization.keep or why_not_bytes(step) is not None


def calibrate(
    graph: fx.GraphModule,
    signature: Signature,
    tensors: list[Tensor],
    batches: Sequence[Example],
    preparation: Preparation,
    where: str,
) -> Calibrated:
    """Run all batches through the graph and look at whatever becomes bytes, unless that is known.

    What eight bits would make of the example (`tensors`) is computed before anything is measured: too much is a DiffersError.
    """
    quantization, calibration = preparation.quantization, preparation.calibration
    assert quantization is not None
    if quantization.precision != "int8":
        return Calibrated(quantization, {}, {})
    regions = [
        region
        for region in find_regions(graph, apart=lambda step: stays_in_float(step, quantization))
        if not stays_in_float(region.region.steps[0], quantization)
    ]
    watched = {region.values[value] for region in regions for value in values_to_observe(fuse_bytes(region.region))}
    linears = {node: node.args[0] for node in graph.graph.nodes if _is_byte_linear(node, graph, quantization)}
    sources = {source for source in linears.values() if isinstance(source, fx.Node)}
    samples: dict[fx.Node, Tensor | None] = dict.fromkeys(sources)
    given = [] if calibration.known else [_tensors(signature, batch, number) for number, batch in enumerate(batches)]
    if calibration.known:
        ranges = {node: calibration.range_of(f"{where}:{node.name}") for node in watched | sources}
    else:
        samples, ranges = _observed(graph, given, quantization, (watched, sources), where)
        calibration.ranges.update({f"{where}:{node.name}": limits for node, limits in ranges.items()})
    observed = {
        node: ObservedInput(ranges[source], samples[source])
        for node, source in linears.items()
        if isinstance(source, fx.Node) and source in samples
    }
    narrow = _narrow(regions, {node: ranges[node] for node in watched}, observed)
    if not calibration.known:
        found = corrections(graph, narrow, given)
        calibration.corrections.update({f"{where}:{node.name}": off for node, off in found.items()})
    corrected = {
        node: calibration.correction_of(f"{where}:{node.name}", narrow.channels(node, graph)) for node in narrow.layers
    }
    if not calibration.known:
        _refuse_if_far(rounding_difference(graph, narrow, corrected, tensors))
    return Calibrated(quantization, ranges, observed, corrected)


def _narrow(regions: Sequence[GraphRegion], ranges: dict[fx.Node, Range], observed: dict[fx.Node, ObservedInput]) -> Narrow:
    """Everything that becomes bytes if regions in eight bits are fast."""
    convolutions = {
        region.values[step.output]: step
        for region in regions
        for step in region.region.steps
        if isinstance(step, ConvolutionStep)
    }
    values = {node: Affine.covering(*limits) for node, limits in ranges.items()}
    return Narrow(values, convolutions, {node: Affine.covering(*read.range) for node, read in observed.items()})


def _refuse_if_far(off: float) -> None:
    """A NaN is far, too."""
    if not off <= NARROW_TOLERANCE["int8"]:
        raise DiffersError(f"{by_how_much(off)}: more calibration data, ranges='mse', or evaluate with max_drop may help")


def _observed(
    graph: fx.GraphModule,
    tensors: list[list[Tensor]],
    quantization: Quantization,
    nodes: tuple[set[fx.Node], set[fx.Node]],
    where: str,
) -> tuple[dict[fx.Node, Tensor | None], dict[fx.Node, Range]]:
    """The ranges of all these nodes, and some of what the second ones give for the first batch."""
    watched, sources = nodes
    samples: dict[fx.Node, Tensor | None] = {}

    def keep_sample(node: fx.Node, value: Any) -> None:
        if node in sources and isinstance(value, Tensor) and value.dim() and value.numel():
            samples[node] = sample_of(value)

    visit_values(graph, tensors[0], keep_sample)
    return samples, observe_nodes(graph, watched | sources, tensors, quantization.observer, where)


def _is_byte_linear(node: fx.Node, graph: fx.GraphModule, quantization: Quantization) -> bool:
    layer = module_of(node, graph)
    if layer is None or not is_linear(layer) or len(node.args) != 1 or shape_of(node) is None:
        return False
    weight = layer._parameters.get("weight")
    return layer_name(node) not in quantization.keep and weight is not None and bool(torch.isfinite(weight).all())


def _tensors(signature: Signature, batch: Example, number: int) -> list[Tensor]:
    tensors = signature.tensors(batch.args, batch.named)
    if tensors is None:
        raise CalibrationError(f"calibration batch {number} is a call unlike the example's")
    return tensors


def byte_region(
    planned: GraphRegion,
    plain: nn.Module,
    inputs: list[Tensor],
    calibrated: Calibrated,
    preparation: Preparation,
    engine: Engine,
) -> ByteRegion | None:
    """The region in int8 or bfloat16, or None where float32 is faster; `planned` has the nodes that were observed."""
    biased = with_corrections(planned.region, calibrated.corrections_in(planned))
    fused, threads, calibration = fuse_bytes(biased), preparation.threads, preparation.calibration
    if calibrated.quantization.precision == "int8":
        ranges = {value: calibrated.ranges[planned.values[value]] for value in values_to_observe(fused)}
        region = ByteRegion(quantize(fused, ranges), engine, threads)
    elif engine.halves is not None:
        region = ByteRegion(in_bfloat16(fused), engine, threads)
    else:
        return None
    if not preparation.choices.byte_region(region, inputs, lambda: _wins(region, planned, plain, inputs)):
        return None
    if calibration.known:
        region.errors = {name: calibration.errors[name] for name in region.layer_names() if name in calibration.errors}
    else:
        _check_kernels(region, inputs)
        region.measure_errors(inputs, _convolution_values(fused.steps, planned, plain, inputs))
        calibration.errors.update(region.errors)
    return region


def _check_kernels(region: ByteRegion, inputs: list[Tensor]) -> None:
    """That a region computes what its integers say, however far that is from the plain model."""
    pairs = zip(tree_leaves(region(*inputs)), tree_leaves(region.plain(*inputs)), strict=True)
    off = max(relative(result, expected) for result, expected in pairs)
    if not off <= KERNEL_TOLERANCE:
        raise DiffersError(f"the kernels differ by {100 * off:.2g} % from their own numbers in torch: please report this model")


def _wins(region: ByteRegion, planned: GraphRegion, plain: nn.Module, inputs: list[Tensor]) -> bool:
    """Whether a region is faster than the float engine and torch."""
    threads = region.threads
    ours, _ = region.measure(inputs)
    floats = NativeRegion(planned.region, plain, region.engine, threads)
    others = {"first guess": lambda: floats(*inputs), "torch": lambda: plain(*inputs)}
    seconds = fastest(others, threads, ROUNDS)
    rivals = [seconds["torch"], seconds["first guess"]]
    if seconds["first guess"] <= NEARLY * ours:
        rivals.append(floats.measure(inputs)[0])
    return min(rivals) >= ours


def _convolution_values(
    steps: Sequence[Step], planned: GraphRegion, plain: nn.Module, inputs: list[Tensor]
) -> dict[int, Tensor]:
    """What torch computes for every convolution of a region."""
    assert isinstance(plain, fx.GraphModule)
    wanted = {planned.values[step.output].name: step.output for step in steps if isinstance(step, ConvolutionStep)}
    found: dict[int, Tensor] = {}

    def keep(node: fx.Node, value: Tensor) -> None:
        if node.name in wanted:
            found[wanted[node.name]] = value.clone()

    visit_values(plain, inputs, keep)
    return found


def byte_linear(
    name: str, layer: nn.Linear, read: ObservedInput, preparation: Preparation, engine: Engine, **named: Any
) -> ByteLinear:
    """The layer in int8, with its error."""
    packed, errors = ByteLinear(name, layer, engine, preparation.threads, read.range, **named), preparation.calibration.errors
    if read.sample is None:
        packed.error = errors.get(name)
    else:
        packed.measure_error(read.sample, layer)
        assert packed.error is not None
        errors[name] = packed.error
    return packed
