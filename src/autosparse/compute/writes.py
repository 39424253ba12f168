"""Which calls of a traced graph may write into a value: what is not known to leave its arguments alone is taken to write."""

from __future__ import annotations

from enum import Enum, auto

from torch import fx, nn

from autosparse.compute.overrides import SPARSE, owner_of
from autosparse.compute.plain_modules import activation_of
from autosparse.compute.tracing import IN_PLACE, has_hooks, is_container

TORCH_MODULES = "torch.nn.modules."
# Files of torch.nn.modules whose results have memory of their own, if the module is not told to work in place.
FRESH_FILES = frozenset({"activation", "batchnorm", "conv", "instancenorm", "normalization", "pooling"})
# Where functions are from that write only if their name ends in _ or they are told to by `inplace` or `out`.
TORCH_FUNCTIONS = frozenset({"torch", "torch.functional", "torch.nn.functional", "torch._C._nn", "_operator", "builtins"})
FRESH_NAMES = frozenset({
    "add", "sub", "mul", "div", "truediv", "neg", "pow", "matmul", "cat", "stack", "clone", "mean", "sum", "amax",
    "size", "dim", "conv2d", "linear", "softmax",
    "relu", "relu6", "leaky_relu", "elu", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "sigmoid", "tanh",
    "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d",
})  # fmt: skip


class Effect(Enum):
    """What a call does to one of its arguments."""

    READS = auto()
    MAY_RETURN = auto()  # the argument itself or a view of it
    MAY_WRITE = auto()


def may_be_written(value: fx.Node, root: nn.Module) -> bool:
    """Whether a node that uses the value, or what may be a view of it, may write into it."""
    names, seen = [value], {value}
    while names:
        name = names.pop()
        for user in name.users:
            effect = _effect(user, name, root)
            if effect is Effect.MAY_WRITE:
                return True
            if effect is Effect.MAY_RETURN and user not in seen:
                seen.add(user)
                names.append(user)
    return False


def _effect(user: fx.Node, argument: fx.Node, root: nn.Module) -> Effect:
    if user.op == "output":
        return Effect.READS
    if user.op == "call_module":
        return _effect_of_module(root.get_submodule(str(user.target)))
    if user.op == "call_method":
        return _effect_by_name(str(user.target), user, argument)
    if getattr(user.target, "__module__", None) in TORCH_FUNCTIONS or user.target in IN_PLACE.values():
        return _effect_by_name(getattr(user.target, "__name__", "_"), user, argument)
    return Effect.MAY_WRITE


def _effect_of_module(module: nn.Module) -> Effect:
    if activation_of(module) is not None and owner_of(module) is None and not has_hooks(module):
        return Effect.READS  # the activation may work in place: on the batch norm's result
    forward = type(module).forward
    overridden = owner_of(module) not in (None, SPARSE)
    if overridden or is_container(module) or has_hooks(module) or not forward.__module__.startswith(TORCH_MODULES):
        return Effect.MAY_WRITE
    if getattr(module, "inplace", False):
        return Effect.MAY_WRITE
    fresh = forward is nn.Linear.forward or forward.__module__.removeprefix(TORCH_MODULES) in FRESH_FILES
    return Effect.READS if fresh else Effect.MAY_RETURN


def _effect_by_name(name: str, call: fx.Node, argument: fx.Node) -> Effect:
    """By the way torch names its functions: those that work in place write into their first argument and return it."""
    if "out" in call.kwargs:
        return Effect.MAY_WRITE
    if name.endswith("_") or name in IN_PLACE or call.kwargs.get("inplace", False) is not False:
        is_target = not call.args or call.args[0] is argument or not isinstance(call.args[0], fx.Node)
        return Effect.MAY_WRITE if is_target else Effect.READS
    return Effect.READS if name in FRESH_NAMES else Effect.MAY_RETURN
