"""The fused forward of a module, which runs in place of its own where that is possible."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autosparse.compute import overrides
from autosparse.compute.formats import mark
from autosparse.compute.fusion import fuse
from autosparse.compute.overrides import FUSED
from autosparse.compute.tracing import Trace, Traces, any_global_hooks, is_container


class FusedForward:
    """What one module computes in training, by fused steps; made again whenever the module's trace is a new one."""

    def __init__(self, traces: Traces | None = None) -> None:
        self._traces = Traces() if traces is None else traces
        self._trace: Trace | None = None
        self._function: Any = None
        self.fused = 0

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> Any:
        """The module's result, by its own forward where fused steps cannot give it."""
        if not module.training or not _usable(arguments):
            return type(module).forward(module, *arguments)
        trace = self._traces.of(module)
        if trace is not self._trace:
            self._trace = trace
            mark(module, trace.graph)
            self._function, self.fused = fuse(module, trace)
            if self._function is None and not trace.has_hooks:  # with hooks it may be fused once they are gone
                overrides.release(module, FUSED)
                if trace.graph is None:
                    install_on_children(module, self._traces)
        forward = type(module).forward if self._function is None else self._function
        return forward(module, *arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedForward:
        return FusedForward()  # a copy traces its own module


def _usable(arguments: tuple[Any, ...]) -> bool:
    images = all(isinstance(each, Tensor) and each.device.type == "cpu" and each.numel() for each in arguments)
    right = images and all(each.dtype is torch.float32 for each in arguments if each.dim() == 4)
    return bool(right) and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling() and not any_global_hooks()


def _forward(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:
    override = overrides.override_of(self)
    if keywords or torch.compiler.is_compiling() or override is None or override.fused is None:
        return type(self).forward(self, *arguments, **keywords)
    return override.fused(self, arguments)


def install(module: nn.Module, traces: Traces) -> None:
    """On this module; where it cannot be traced, its first call in training moves this to its children."""
    if type(module).forward is nn.Module.forward:  # a list or a dict of modules
        install_on_children(module, traces)
    elif is_container(module) and overrides.owner_of(module) is None:
        overrides.take(module, FUSED, _forward).fused = FusedForward(traces)


def install_on_children(module: nn.Module, traces: Traces) -> None:
    for name, child in module.named_children():
        if name != "parametrizations":
            install(child, traces)


def remove(root: nn.Module) -> None:
    """From this module and from all inside it."""
    for module in root.modules():
        overrides.release(module, FUSED)


def count_fused(root: nn.Module) -> int:
    """How many batch norms run fused now."""
    records = (overrides.override_of(module) for module in root.modules())
    return sum(record.fused.fused for record in records if record is not None and record.fused is not None)
