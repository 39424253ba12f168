"""Puts native regions and packed linear layers into a captured graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from autosparse.common.graphs import RELUS, calls, visit_values
from autosparse.kernels.library import Engine
from autosparse.serving.agreement import DiffersError
from autosparse.serving.capture import Captured, is_sum, layer_name, module_of, one_line, shape_of, trace, with_shapes
from autosparse.serving.example import Example
from autosparse.serving.fold import fold
from autosparse.serving.kinds import as_linear, has_hooks, is_convolution, is_linear
from autosparse.serving.lift import lift
from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import NativeRegion
from autosparse.serving.preparation import Preparation
from autosparse.serving.quantized.calibration import CalibrationError, ForgottenError
from autosparse.serving.quantized.capture import Calibrated, byte_linear, byte_region, calibrate
from autosparse.serving.regions import GraphRegion, find_regions
from autosparse.serving.signature import CannotCaptureError
from autosparse.serving.steps import INFINITY


def captured(
    model: nn.Module, example: Example, preparation: Preparation, name: str = "", batches: list[Example] | None = None
) -> Captured:
    """The model, or the part of one with this name, as a graph with norms folded, native regions and packed layers.

    For int8 `batches` are what a part receives for the calibration batches.
    """
    single = is_linear(model) or is_convolution(model)  # torch.fx would look inside
    root = nn.Sequential(model) if single else model
    traced, signature, result = trace(root, example)
    for node in traced.graph.nodes:
        if node.op == "call_module":
            node.meta["layer"] = name if single else f"{name}.{node.target}".lstrip(".")
    tensors = signature.tensors(example.args, example.named)
    assert tensors is not None
    try:
        graph = fold(with_shapes(traced, tensors))
        lift(graph)
        with_shapes(graph, tensors)
        calibrated = None
        if preparation.quantization is not None and preparation.engine is not None:
            given = preparation.quantization.batches if batches is None else batches
            calibrated = calibrate(graph, signature, tensors, given, preparation, name)
        if preparation.engine is not None:
            use_native_regions(graph, tensors, preparation, preparation.engine, calibrated)
        use_packed_linears(graph, preparation, calibrated)
    except (CannotCaptureError, DiffersError, ForgottenError, CalibrationError):
        raise
    except Exception as error:  # a graph unlike any that we know: the model still runs layer by layer
        raise CannotCaptureError(one_line(error)) from error
    return Captured(graph, name or type(model).__name__, model, signature, result)


def plain_module(graph: fx.GraphModule, region: GraphRegion) -> fx.GraphModule:
    """A region's nodes as a module of their own, in torch."""
    inner = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: inner.placeholder(f"input_{place}") for place, node in enumerate(region.inputs)}
    for node in region.nodes:
        copies[node] = inner.node_copy(node, copies.__getitem__)
    results = [copies[node] for node in region.outputs]
    inner.output(results[0] if len(results) == 1 else tuple(results))
    return fx.GraphModule(graph, inner)


def use_native_regions(
    graph: fx.GraphModule, tensors: list[Tensor], preparation: Preparation, engine: Engine, calibrated: Calibrated | None = None
) -> None:
    """In place; regions that are faster in torch stay there."""
    renamed: dict[fx.Node, fx.Node] = {}
    apart = calibrated.in_float if calibrated is not None else lambda step: False
    for number, planned in enumerate(find_regions(graph, preparation.reasons, apart)):
        # outputs of earlier regions have other nodes by now
        region = replace(planned, inputs=tuple(renamed.get(node, node) for node in planned.inputs))
        plain, inputs = plain_module(graph, region), _values(graph, region.inputs, tensors)
        module: NativeRegion | None = None
        if calibrated is not None and not apart(planned.region.steps[0]):
            module = byte_region(planned, plain, inputs, calibrated, preparation, engine)
        if module is None:
            module = NativeRegion(region.region, plain, engine, preparation.threads)
            ours, torchs = preparation.choices.region(module, inputs)
            if ours > torchs:
                reason = f"torch was faster ({torchs * 1e3:.2f} ms, the native engine {ours * 1e3:.2f} ms)"
                preparation.reasons.update(dict.fromkeys(module.layer_names(), reason))
                continue
        name = f"native_{number}"
        graph.add_submodule(name, module)
        renamed |= _replace(graph, region, name)
    graph.delete_all_unused_submodules()
    graph.recompile()


def _values(graph: fx.GraphModule, nodes: tuple[fx.Node, ...], tensors: list[Tensor]) -> list[Tensor]:
    """What some nodes compute for the example's tensors."""
    values: dict[fx.Node, Tensor] = {}

    def keep(node: fx.Node, value: Tensor) -> None:
        if node in nodes:
            values[node] = value.clone()

    visit_values(graph, tensors, keep)
    return [values[node] for node in nodes]


def _replace(graph: fx.GraphModule, region: GraphRegion, name: str) -> dict[fx.Node, fx.Node]:
    """One call instead of the region's nodes; returns the nodes that now stand for its outputs."""
    renamed: dict[fx.Node, fx.Node] = {}
    inside = set(region.nodes)
    with graph.graph.inserting_after(region.nodes[-1]):
        call = graph.graph.call_module(name, region.inputs)
    place = call
    for index, node in enumerate(region.outputs):
        shape = shape_of(node)
        result = call
        with graph.graph.inserting_after(place):
            if len(region.outputs) > 1:
                result = place = graph.graph.call_function(operator.getitem, (call, index))
        if shape is not None and len(shape) == 2:
            with graph.graph.inserting_after(place):
                result = place = graph.graph.call_function(without_pixels, (result,))
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside)
        result.meta["tensor_meta"] = node.meta["tensor_meta"]
        renamed[node] = result
    for node in reversed(region.nodes):
        graph.graph.erase_node(node)
    return renamed


def without_pixels(mean: Tensor) -> Tensor:
    """A mean without the (1, 1) pixels that the engine gives it and torch does not."""
    return mean.flatten(1) if mean.dim() == 4 else mean


def use_packed_linears(graph: fx.GraphModule, preparation: Preparation, calibrated: Calibrated | None = None) -> None:
    """In place: every linear layer becomes a packed one, with the ReLU and the sum that follow it."""
    for number, node in enumerate(list(graph.graph.nodes)):
        layer = module_of(node, graph)
        if layer is None or not is_linear(layer) or len(node.args) != 1 or not isinstance(node.args[0], fx.Node):
            continue
        chain, added, low = _followers(node, graph)
        shape, join = shape_of(node), _join(chain[1], node) if added else torch.add
        rank = len(shape) if shape is not None and "folded" in node.meta else None
        linear = as_linear(layer)
        named: dict[str, Any] = {"low": low, "join": join, "rank": rank}
        packed = PackedLinear(layer_name(node), linear, preparation.engine, preparation.threads, **named)
        if calibrated is not None and node in calibrated.linears and preparation.engine is not None and packed.usable:
            read, named["correction"] = calibrated.linears[node], calibrated.corrections.get(node)
            packed = byte_linear(layer_name(node), linear, read, preparation, preparation.engine, **named)
        preparation.choices.linear(packed, [max(1, torch.Size(shape[:-1]).numel())] if shape else [], preparation.hot)
        name = f"{str(node.target).replace('.', '_')}_packed_{number}"
        graph.add_submodule(name, packed)
        with graph.graph.inserting_after(chain[-1]):
            call = graph.graph.call_module(name, (node.args[0], *added))
        chain[-1].replace_all_uses_with(call)
        call.meta.update(chain[-1].meta)
        for replaced in reversed(chain):
            graph.graph.erase_node(replaced)
    graph.delete_all_unused_submodules()
    graph.recompile()


def _followers(node: fx.Node, graph: fx.GraphModule) -> tuple[list[fx.Node], list[fx.Node], float]:
    """A linear layer's node with the sum and the ReLU after it, what the sum adds, and the lower bound."""
    chain, added, low = [node], [], -INFINITY
    user = _only_user(node)
    if user is not None and is_sum(user):
        others = [other for other in user.args if other is not node]
        if len(others) == 1 and isinstance(others[0], fx.Node) and shape_of(others[0]) == shape_of(node) is not None:
            chain, added = [node, user], [others[0]]
            user = _only_user(user)
    if user is not None and (calls(user, RELUS) or _is_relu(module_of(user, graph))):
        chain, low = [*chain, user], 0.0
    return chain, added, low


def _join(total: fx.Node, linear: fx.Node) -> Callable[[Tensor, Tensor], Tensor]:
    """The model's own sum of a linear layer's result and another tensor; a sum in place keeps the shape of its first term."""
    add: Any = getattr(Tensor, str(total.target)) if total.op == "call_method" else total.target
    return add if total.args[0] is linear else lambda result, other: add(other, result)


def _is_relu(module: nn.Module | None) -> bool:
    return isinstance(module, nn.ReLU) and not has_hooks(module)


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None
