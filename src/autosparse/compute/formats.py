"""Which convolutions must give the memory format that torch gives: those whose results somebody may call `view` on."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from autosparse.compute.overrides import SPARSE, override_of, owner_of
from autosparse.compute.plain_modules import activation_of
from autosparse.compute.tracing import IN_PLACE, has_hooks, is_container
from autosparse.compute.writes import FRESH_FILES, FRESH_NAMES, TORCH_FUNCTIONS, TORCH_MODULES

# Calls whose results do not depend on the format of their arguments.
ENDS = frozenset({"flatten", "reshape", "size", "dim", "linear"})
# Calls that take any format, and whose results may have that of their arguments.
PASSES_ON = FRESH_NAMES | IN_PLACE.keys() | {"dropout", "interpolate", "pad", "detach", "clamp", "abs", "exp", "sqrt", "rsub"}
FILES_THAT_PASS_ON = frozenset(TORCH_MODULES + name for name in (*FRESH_FILES, "dropout", "upsampling", "padding"))


def is_channels_last(tensor: Tensor) -> bool:
    return not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


def may_be_viewed(value: fx.Node, root: nn.Module) -> bool:
    """Whether the value, or what has its format, may get to a call that depends on how it lies in memory."""
    waiting, visited = [value], {value}
    while waiting:
        for user in waiting.pop().users:
            if user in visited or _ends(user, root):
                continue
            if not _passes_on(user, root):
                return True
            visited.add(user)
            waiting.append(user)
    return False


def _ends(node: fx.Node, root: nn.Module) -> bool:
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        is_sparse_conv = owner_of(module) == SPARSE and isinstance(module, nn.Conv2d)
        is_linear_or_flatten = type(module).forward in (nn.Linear.forward, nn.Flatten.forward) and not has_hooks(module)
        return is_sparse_conv or is_linear_or_flatten
    return _name(node) in ENDS or (node.target is getattr and node.args[1] == "shape")


def _passes_on(node: fx.Node, root: nn.Module) -> bool:
    if node.op != "call_module":
        name = _name(node)
        return name in PASSES_ON or name.removesuffix("_") in PASSES_ON
    module = root.get_submodule(str(node.target))
    activation = activation_of(module)
    if activation is not None:
        is_known = type(activation) is nn.Identity or type(activation).forward.__module__ in FILES_THAT_PASS_ON
        return is_known and not has_hooks(module)
    file = type(module).forward.__module__
    is_plain = owner_of(module) is None and not has_hooks(module)
    return is_plain and not is_container(module) and file in FILES_THAT_PASS_ON


def _name(node: fx.Node) -> str:
    """Of a method, or of a function of torch."""
    if node.op == "call_method":
        return str(node.target)
    is_known = getattr(node.target, "__module__", None) in TORCH_FUNCTIONS or node.target in IN_PLACE.values()
    return getattr(node.target, "__name__", "") if node.op == "call_function" and is_known else ""


def mark(root: nn.Module, graph: fx.Graph | None) -> None:
    """Tell the sparse convolutions inside a module what their results may be; what the graph does not show stays torch's."""
    nodes = [] if graph is None else list(graph.find_nodes(op="call_module"))
    calls = [(root.get_submodule(str(node.target)), node) for node in nodes]
    visible = {module for module, _ in calls}
    viewed = {module for module, node in calls if owner_of(module) == SPARSE and may_be_viewed(node, root)}
    for module in root.modules():
        record = override_of(module)
        if record is not None and record.owner == SPARSE:
            record.result_format = "torch" if module not in visible else "weight" if module in viewed else "any"
