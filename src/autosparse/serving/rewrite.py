"""Puts native regions and packed linear layers into a captured graph."""

from __future__ import annotations

import operator
from dataclasses import replace

import torch
from torch import Tensor, fx, nn

from autosparse.common.graphs import RELUS, calls
from autosparse.kernels.library import Engine
from autosparse.serving.capture import is_sum, module_of, shape_of
from autosparse.serving.linear import PackedLinear, weights_in_caches
from autosparse.serving.native import NativeRegion
from autosparse.serving.regions import Found, find_regions


def plain_module(graph: fx.GraphModule, found: Found) -> fx.GraphModule:
    """A region's nodes as a module of their own, in torch."""
    inner = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: inner.placeholder(f"input_{place}") for place, node in enumerate(found.inputs)}
    for node in found.nodes:
        copies[node] = inner.node_copy(node, lambda each: copies[each])
    results = [copies[node] for node in found.outputs]
    inner.output(results[0] if len(results) == 1 else tuple(results))
    return fx.GraphModule(graph, inner)


def use_native_regions(graph: fx.GraphModule, examples: tuple[object, ...], engine: Engine, threads: int) -> list[str]:
    """In place; returns notes on regions that are faster in torch."""
    notes = []
    renamed: dict[fx.Node, fx.Node] = {}
    for number, planned in enumerate(find_regions(graph)):
        # what an earlier region made has another node by now
        found = replace(planned, inputs=tuple(renamed.get(node, node) for node in planned.inputs))
        plain = plain_module(graph, found)
        region = NativeRegion(found.region, plain, engine, threads)
        inputs = _values(graph, found.inputs, examples)
        ours, torchs = region.measure(inputs)
        if ours > torchs:
            notes.append(
                f"{len(found.nodes)} operations from {found.nodes[0].name} to {found.nodes[-1].name} stay in torch, "
                f"which took {torchs * 1e3:.2f} ms here and the native engine {ours * 1e3:.2f} ms"
            )
            continue
        name = f"native_{number}"
        graph.add_submodule(name, region)
        renamed |= _replace(graph, found, name)
    graph.delete_all_unused_submodules()
    graph.recompile()
    return notes


def _values(graph: fx.GraphModule, wanted: tuple[fx.Node, ...], examples: tuple[object, ...]) -> list[Tensor]:
    """What some nodes are for the examples."""
    seen: dict[fx.Node, Tensor] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> object:
            result = super().run_node(n)
            if n in wanted:
                seen[n] = result.clone()
            return result

    with torch.no_grad():
        Recorder(graph).run(*examples)
    return [seen[node] for node in wanted]


def _replace(graph: fx.GraphModule, found: Found, name: str) -> dict[fx.Node, fx.Node]:
    """One call instead of the region's nodes; returns the nodes that now stand for its outputs."""
    renamed: dict[fx.Node, fx.Node] = {}
    inside = set(found.nodes)

    def outside(user: fx.Node) -> bool:
        return user not in inside

    with graph.graph.inserting_after(found.nodes[-1]):
        call = graph.graph.call_module(name, found.inputs)
    place = call
    for index, node in enumerate(found.outputs):
        shape = shape_of(node)
        result = call
        with graph.graph.inserting_after(place):
            if len(found.outputs) > 1:
                result = place = graph.graph.call_function(operator.getitem, (call, index))
        if shape is not None and len(shape) == 2:  # a mean without its (1, 1) pixels
            with graph.graph.inserting_after(place):
                result = place = graph.graph.call_function(torch.flatten, (result, 1))
        node.replace_all_uses_with(result, delete_user_cb=outside)
        result.meta["tensor_meta"] = node.meta["tensor_meta"]
        renamed[node] = result
    for node in reversed(found.nodes):
        graph.graph.erase_node(node)
    return renamed


def use_packed_linears(graph: fx.GraphModule, engine: Engine | None, threads: int) -> None:
    """In place: every nn.Linear becomes a packed one, with the ReLU and the sum that follow it."""
    hot = weights_in_caches(graph)
    for number, node in enumerate(list(graph.graph.nodes)):
        layer = module_of(node, graph)
        if type(layer) is not nn.Linear:
            continue
        added, last, low = None, node, -float("inf")
        user = _only_user(last)
        if user is not None and is_sum(user):
            others = [each for each in user.args if each is not last]
            if len(others) == 1 and isinstance(others[0], fx.Node) and shape_of(others[0]) == shape_of(last) is not None:
                added, last = others[0], user
                user = _only_user(last)
        if user is not None and (calls(user, RELUS) or isinstance(module_of(user, graph), nn.ReLU)):
            low, last = 0.0, user
        name = f"{str(node.target).replace('.', '_')}_packed_{number}"
        packed = PackedLinear(str(node.meta.get("layer", node.target)), layer, engine, threads, low)
        shape = shape_of(node)
        if shape is not None:
            packed.measure(max(1, torch.Size(shape[:-1]).numel()), hot)
        graph.add_submodule(name, packed)
        with graph.graph.inserting_after(last):
            call = graph.graph.call_module(name, (node.args[0],) if added is None else (node.args[0], added))
        last.replace_all_uses_with(call)
        call.meta.update(last.meta)
        for each in [last] if last is node else [last, *_between(node, last)]:
            graph.graph.erase_node(each)
    graph.delete_all_unused_submodules()
    graph.recompile()


def _between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    """From last's producer back to `first`, along the chain of only users."""
    chain, node = [first], _only_user(first)
    while node is not None and node is not last:
        chain.append(node)
        node = _only_user(node)
    return list(reversed(chain))


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None
