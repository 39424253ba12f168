"""Which fused steps compute with images last: networks of them, which tensors enter and leave in an order that torch knows."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from torch import fx, nn

from autosparse.compute import fused_layers

CONVOLUTIONS = (fused_layers.conv_norm, fused_layers.joined_conv_norm)
STEPS = (*CONVOLUTIONS, fused_layers.activated, fused_layers.joined)
TURNS = (fused_layers.plain, fused_layers.to_images, fused_layers.to_channels)
# Turning what enters and leaves costs as much as a convolution gains.
LEAST_CONVOLUTIONS = 2


def lie_images_last(graph: fx.Graph, root: nn.Module) -> set[nn.Module]:
    """Let networks of fused steps compute with images last; gives their convolutions."""
    networks = [network for network in _networks(graph) if _gains(network, root)]
    for network in networks:
        _turn_inputs(graph, network)
        _turn_results(graph, network)
    return {conv for network in networks for conv in _convolutions(network, root)}


def _networks(graph: fx.Graph) -> list[list[fx.Node]]:
    """Fused steps that hand values to each other, in the order of the graph."""
    networks: list[list[fx.Node]] = []
    for node in graph.nodes:
        if _is_inside(node):
            joined = [network for network in networks if any(each in network for each in node.all_input_nodes)]
            networks = [network for network in networks if network not in joined]
            networks.append([*(each for network in joined for each in network), node])
    order = {node: place for place, node in enumerate(graph.nodes)}
    return [sorted(network, key=order.__getitem__) for network in networks]


def _is_inside(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and source.target is fused_layers.joined_conv_norm
    return node.target in STEPS


def _gains(network: Iterable[fx.Node], root: nn.Module) -> bool:
    """Enough convolutions, and none with groups, whose kernels take channels last alone."""
    convolutions = _convolutions(network, root)
    return len(convolutions) >= LEAST_CONVOLUTIONS and all(conv.groups == 1 for conv in convolutions)


def _convolutions(network: Iterable[fx.Node], root: nn.Module) -> list[nn.Conv2d]:
    calls = (node for node in network if node.target in CONVOLUTIONS)
    read = (each for call in calls for each in call.all_input_nodes if each.op == "get_attr")
    modules = (root.get_submodule(str(each.target)) for each in read)
    return [module for module in modules if isinstance(module, nn.Conv2d)]


def _turn_inputs(graph: fx.Graph, network: list[fx.Node]) -> None:
    turned: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node not in network:
            if not _writes_nothing(node):  # what is turned must be turned again
                turned.clear()
            continue
        for given in node.all_input_nodes:
            if given in network or given.op == "get_attr":
                continue
            if given not in turned:
                with graph.inserting_before(node):
                    turned[given] = graph.call_function(fused_layers.to_images, (given,))
            node.replace_input_with(given, turned[given])


def _writes_nothing(node: fx.Node) -> bool:
    return node.op in ("placeholder", "get_attr") or _is_inside(node) or node.target in TURNS


def _turn_results(graph: fx.Graph, network: list[fx.Node]) -> None:
    for node in network:
        users = [user for user in node.users if user not in network and user.target is not fused_layers.plain]
        if users and _is_tensor(node):
            with graph.inserting_after(node):
                turned = graph.call_function(fused_layers.to_channels, (node,))
            for user in users:
                user.replace_input_with(node, turned)


def _is_tensor(node: fx.Node) -> bool:
    """Else a normalised value."""
    return node.target is fused_layers.joined or (node.target is operator.getitem and node.args[1:] == (0,))
