"""Puts a fused forward on a module in place of its own, and decides at every call whether it may run."""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.compute.fusion import fuse
from autosparse.compute.tracing import Untraceable, any_global_hooks, has_hooks

ATTRIBUTE = "fused_step"
# A module whose own attributes change from call to call cannot be traced once for all.
MOST_TRACES = 8
SIMPLE = (bool, int, float, str, type(None))


class FusedStep:
    """The fused forward of one module: traced at its first call in training, and anew when the module has changed."""

    def __init__(self) -> None:
        self._function: Any = None
        self._signature: object = None
        self._traces = 0
        self.fused = 0

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> Any:
        """The module's result, by fused steps where that is possible and by its own forward elsewhere."""
        own = type(module).forward
        if not module.training or not _usable(arguments):
            return own(module, *arguments)
        signature = _signature(module)
        if signature != self._signature:
            self._signature, self._function, self.fused = signature, None, 0
            self._traces += 1
            try:
                if self._traces <= MOST_TRACES:
                    self._function, self.fused = fuse(module)
            except Untraceable:
                if not any(has_hooks(each) for each in _own_modules(module)):  # else it is tried again when they are gone
                    remove(module)
                    for child in module.children():
                        install(child)
        return own(module, *arguments) if self._function is None else self._function(module, *arguments)

    def renew(self) -> None:
        """Trace again at the next call: a forward may depend on more than its signature shows."""
        self._signature, self._traces = None, max(0, self._traces - 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedStep:
        return FusedStep()  # a copy traces its own module

    def __reduce__(self) -> tuple[Any, ...]:
        return FusedStep, ()


def _usable(arguments: tuple[Any, ...]) -> bool:
    images = all(isinstance(each, Tensor) and each.device.type == "cpu" and each.numel() for each in arguments)
    right = images and all(each.dtype is torch.float32 for each in arguments if each.dim() == 4)
    return bool(right) and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling() and not any_global_hooks()


def _signature(root: nn.Module) -> object:
    """What a graph depends on besides tensors: modules, modes, hooks, plain attributes of containers, what works in place."""
    return [
        (
            id(module),
            module.training,
            has_hooks(module),
            [(name, value) for name, value in vars(module).items() if isinstance(value, SIMPLE)]
            if module._modules
            else vars(module).get("inplace"),
        )
        for module in _own_modules(root)
    ]


def _own_modules(root: nn.Module) -> Iterator[nn.Module]:
    """All modules but those that make weights. At every step, so without the names that torch's own walk makes."""
    waiting: list[nn.Module | None] = [root]
    seen = set()
    while waiting:
        module = waiting.pop()
        if module is not None and module not in seen:
            seen.add(module)
            yield module
            waiting.extend(child for name, child in module._modules.items() if name != "parametrizations")


def _forward(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:
    if keywords or torch.compiler.is_compiling():
        return type(self).forward(self, *arguments, **keywords)
    step: FusedStep = vars(self)[ATTRIBUTE]
    return step(self, arguments)


def install(module: nn.Module) -> None:
    """On this module, or where it cannot be traced on its parts, when they are first called."""
    if "forward" in vars(module) or not module._modules:
        return
    if type(module).forward is nn.Module.forward:  # a list or a dict of modules
        for child in module.children():
            install(child)
        return
    setattr(module, ATTRIBUTE, FusedStep())
    module.forward = MethodType(_forward, module)


def remove(root: nn.Module) -> None:
    """From this module alone or from all inside it."""
    for module in root.modules():
        if ATTRIBUTE in vars(module):
            delattr(module, ATTRIBUTE)
            del module.forward


def renew(root: nn.Module) -> None:
    """Let every fused forward be traced again."""
    for module in root.modules():
        if ATTRIBUTE in vars(module):
            vars(module)[ATTRIBUTE].renew()


def count_fused(root: nn.Module) -> int:
    """How many batch norms run fused now."""
    return sum(vars(module)[ATTRIBUTE].fused for module in root.modules() if ATTRIBUTE in vars(module))
