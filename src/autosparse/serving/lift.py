"""Conv1d for the engine, which knows pictures: sequences become pictures of one row, through all that can follow."""

from __future__ import annotations

import torch
from torch import fx, nn

from autosparse.common.graphs import RELUS, calls
from autosparse.serving.capture import is_sum, layer_name, module_of, shape_of
from autosparse.serving.kinds import computes_as, origin_of, set_origin
from autosparse.serving.steps import Origin

ROW = -2  # counted from the end: a sequence without a batch becomes a picture without one
POINTWISE = (nn.ReLU, nn.Hardtanh)


def lift(graph: fx.GraphModule) -> bool:
    """In place: every Conv1d over a batch of sequences as a Conv2d. Returns whether there was one."""
    pictures: dict[fx.Node, fx.Node] = {}  # by the sequence that they hold
    for number, node in enumerate(list(graph.graph.nodes)):
        layer = module_of(node, graph)
        with graph.graph.inserting_before(node):
            if isinstance(layer, nn.Conv1d) and can_lift(layer) and _reads_sequences(node):
                name = f"{str(node.target).replace('.', '_')}_lifted_{number}"
                graph.add_submodule(name, as_2d(layer))
                source = node.all_input_nodes[0]
                row = pictures.get(source) or graph.graph.call_function(torch.unsqueeze, (source, ROW))
                picture = graph.graph.call_module(name, (row,))
                picture.meta["layer"] = layer_name(node)
            elif _can_follow(node, graph) and all(source in pictures for source in node.all_input_nodes):
                picture = graph.graph.node_copy(node, pictures.__getitem__)
            else:
                continue
            sequence = graph.graph.call_function(torch.squeeze, (picture, ROW))
        sequence.meta["tensor_meta"] = node.meta["tensor_meta"]
        node.replace_all_uses_with(sequence)
        graph.graph.erase_node(node)
        pictures[sequence] = picture
    for sequence in reversed(pictures):
        if not sequence.users:
            graph.graph.erase_node(sequence)
    graph.delete_all_unused_submodules()
    graph.recompile()
    return bool(pictures)


def can_lift(layer: nn.Conv1d) -> bool:
    """Whether there is a Conv2d that computes the same."""
    return computes_as(layer, nn.Conv1d) and layer.padding_mode == "zeros"


def as_2d(layer: nn.Conv1d) -> nn.Conv2d:
    """The convolution on pictures of one row; its stride is the engine's, the same in both directions."""
    stride, dilation = layer.stride[0], layer.dilation[0]
    padding = layer.padding if isinstance(layer.padding, str) else (0, layer.padding[0])
    picture = nn.Conv2d(
        layer.in_channels, layer.out_channels, (1, layer.kernel_size[0]), (stride, stride), padding, (1, dilation),
        layer.groups, layer.bias is not None, device="meta",
    )  # fmt: skip
    picture.weight = nn.Parameter(layer.weight.detach().unsqueeze(ROW), requires_grad=False)
    picture.bias = layer.bias
    origin = origin_of(layer)
    if origin is not None:
        set_origin(picture, Origin(origin.weight.unsqueeze(ROW), origin.factors))
    for hook in layer._forward_hooks.values():  # refuses what a folded norm would
        picture.register_forward_hook(hook)
    return picture.eval()


def _reads_sequences(node: fx.Node) -> bool:
    sources = node.all_input_nodes
    return len(sources) == len(node.args) == 1 and len(shape_of(sources[0]) or ()) == 3


def _can_follow(node: fx.Node, graph: fx.GraphModule) -> bool:
    """Whether a node computes pixel by pixel what the engine computes, too."""
    sources = node.all_input_nodes
    if is_sum(node):
        return len(sources) == 2 and shape_of(sources[0]) == shape_of(sources[1])
    return len(sources) == 1 and (calls(node, RELUS) or isinstance(module_of(node, graph), POINTWISE))
