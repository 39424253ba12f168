"""Which modules compute as torch's own classes do: nothing that their forward uses is overridden."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils import parametrize

# What a subclass may define without changing what its forward computes.
HARMLESS = frozenset({
    "__init__", "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__annotate_func__", "__parameters__",
    "__firstlineno__", "__static_attributes__", "__constants__", "__getstate__", "__setstate__", "__deepcopy__", "__repr__",
    "__hash__", "extra_repr", "reset_parameters", "_load_from_state_dict", "_save_to_state_dict", "_version",
})  # fmt: skip


def computes_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the module is of this class of torch, and neither a subclass nor the module itself overrides what it uses.

    Parametrized tensors count as torch's own; a `forward` set on the module itself is a matter of `overrides`.
    """
    if not isinstance(module, kind):
        return False
    fields = (name for each in kind.__mro__ for name in vars(each).get("__annotations__", ()))
    known = {*dir(kind), *fields, *vars(module), *module._parameters, *module._buffers, *module._modules}
    added = {name for each in type(module).__mro__ if each not in kind.__mro__ for name in vars(each)}
    allowed = HARMLESS | set(module.parametrizations if parametrize.is_parametrized(module) else ())  # type: ignore[arg-type]
    methods = {name for name in vars(module) if callable(getattr(kind, name, None))} - {"forward"}
    return not methods and not (added & known) - allowed


def is_norm_with_activation(module: nn.Module) -> bool:
    """Whether this is timm's BatchNormAct2d, a batch norm with an activation behind it; known without importing timm."""
    kind = type(module)
    return kind.__name__ == "BatchNormAct2d" and kind.__module__.startswith("timm.") and isinstance(module, nn.BatchNorm2d)


def activation_of(module: nn.Module) -> nn.Module | None:
    """What a batch norm with an activation applies, if an example shows that it does that and nothing else."""
    if not is_norm_with_activation(module) or type(module._modules.get("drop")) is not nn.Identity:
        return None
    activation = module._modules.get("act")
    if activation is None:
        return None
    kinds = type(module), type(activation)
    if kinds not in _APPLIES:
        _APPLIES[kinds] = _applies(module, activation)
    return activation if _APPLIES[kinds] else None


# Whether a class of batch norms applies a class of activations: one example tells.
_APPLIES: dict[tuple[type, type], bool] = {}


@torch.no_grad()
def _applies(module: nn.Module, activation: nn.Module) -> bool:
    """Whether copies in training give the same for a small batch, and keep the same statistics."""
    assert isinstance(module, nn.BatchNorm2d)
    whole, behind = copy.deepcopy((module, activation))
    norm = nn.BatchNorm2d(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
    norm.load_state_dict(module.state_dict(), strict=False)
    x = torch.randn(4, module.num_features, 2, 2, generator=torch.Generator().manual_seed(0))
    same = torch.equal(whole.train()(x), behind(norm(x)))
    kept = [(norm._buffers[name], each) for name, each in whole._buffers.items()]
    return same and all(a is b if a is None or b is None else torch.equal(a, b) for a, b in kept)
