"""Folds batch norms into the convolutions and linear layers before them, and takes dropout and identities out."""

from __future__ import annotations

import copy
import operator

import torch
from torch import Tensor, fx, nn

from autosparse.serving.capture import layer_name, module_of, shape_of
from autosparse.serving.kinds import HARMLESS, computes_as, has_hooks, origin_of, set_origin
from autosparse.serving.steps import Origin

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
IN_PLACE = {operator.iadd, operator.imul, operator.isub, torch.relu_}
NOTHING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)


def scale_and_shift(norm: nn.modules.batchnorm._BatchNorm) -> tuple[Tensor, Tensor]:
    """The norm in evaluation as scale * x + shift, by channel, computed in double precision."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    gain = norm.weight.double() if norm.affine else torch.ones_like(mean)
    offset = norm.bias.double() if norm.affine else torch.zeros_like(mean)
    scale = gain / torch.sqrt(variance + norm.eps)
    return scale, offset - mean * scale


def folded(layer: nn.Conv1d | nn.Conv2d | nn.Linear, norm: nn.modules.batchnorm._BatchNorm) -> nn.Module:
    """A new layer that computes what the two computed together."""
    scale, shift = scale_and_shift(norm)
    result = copy.deepcopy(layer)
    weight = layer.weight.detach().double()
    bias = torch.zeros_like(shift) if layer.bias is None else layer.bias.detach().double()
    result.weight = nn.Parameter((weight * scale.view(-1, *[1] * (weight.dim() - 1))).float(), requires_grad=False)
    result.bias = nn.Parameter((bias * scale + shift).float(), requires_grad=False)
    origin = origin_of(layer) or Origin(layer.weight.detach(), torch.ones_like(scale))
    set_origin(result, Origin(origin.weight, origin.factors * scale))
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        result.register_forward_hook(refuse_without_batch)
    return result


def refuse_without_batch(layer: nn.Module, _: object, result: Tensor) -> None:
    """Convolutions take a single image or sequence, but the norm that was folded does not."""
    rank = 3 if isinstance(layer, nn.Conv1d) else 4
    if result.dim() != rank:
        raise ValueError(f"expected {rank}D input (got {result.dim()}D input)")


HARMLESS.add(refuse_without_batch)


def without_side_effects(graph: fx.GraphModule) -> None:
    """Readers of a tensor that was changed in place before read the changed one: make the graph say so."""
    order = {node: place for place, node in enumerate(graph.graph.nodes)}
    for node in list(graph.graph.nodes):
        if not node.args or not isinstance(node.args[0], fx.Node):
            continue
        module = module_of(node, graph)
        named = node.target in IN_PLACE or (node.op == "call_method" and str(node.target).endswith("_"))
        if named or getattr(module, "inplace", False) or node.kwargs.get("inplace", False):
            source = node.args[0]
            for user in list(source.users):
                if order[user] > order[node]:
                    user.replace_input_with(source, node)


def fold(graph: fx.GraphModule) -> fx.GraphModule:
    """In place: fewer nodes, the same values. A layer or norm that is used twice is folded at each use."""
    without_side_effects(graph)
    for number, node in enumerate(list(graph.graph.nodes)):
        module = module_of(node, graph)
        if module is None or not node.args:
            continue
        source = node.args[0]
        if not isinstance(source, fx.Node) or has_hooks(module):
            continue
        if isinstance(module, NOTHING):
            node.replace_all_uses_with(source)
            graph.graph.erase_node(node)
        elif isinstance(module, NORMS) and foldable(module, source, graph):
            layer = module_of(source, graph)
            assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear)
            name = f"{str(source.target).replace('.', '_')}_folded_{number}"
            graph.add_submodule(name, folded(layer, module))
            source.meta.update(layer=layer_name(source), folded=True)
            source.target = name
            node.replace_all_uses_with(source)
            graph.graph.erase_node(node)
    graph.delete_all_unused_submodules()
    graph.recompile()
    return graph


def foldable(norm: nn.modules.batchnorm._BatchNorm, source: fx.Node, graph: fx.GraphModule) -> bool:
    """Whether a norm follows a layer of the same channels whose result has no other reader."""
    layer = module_of(source, graph)
    # of a (batch, length, features) tensor BatchNorm1d normalises the length
    rank, kind = len(shape_of(source) or ()), nn.BatchNorm1d if isinstance(norm, nn.BatchNorm1d) else nn.BatchNorm2d
    fits = {(nn.BatchNorm2d, 4): nn.Conv2d, (nn.BatchNorm1d, 3): nn.Conv1d, (nn.BatchNorm1d, 2): nn.Linear}.get((kind, rank))
    plain = fits is not None and computes_as(layer, fits)
    return plain and norm.running_mean is not None and len(source.users) == 1
