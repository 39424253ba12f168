"""The fused forward of a module, which runs in place of its own where that is possible."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.compute import overrides
from autosparse.compute.formats import mark
from autosparse.compute.fusion import Fused, fuse
from autosparse.compute.overrides import FUSED
from autosparse.compute.proof import Proofs, compare
from autosparse.compute.routing import precision_now
from autosparse.compute.tracing import Trace, Traces, any_global_hooks, is_container
from autosparse.kernels.memory import is_eager_memory


class FusedForward:
    """What one module computes in training, by fused steps; made again whenever the module's trace is a new one."""

    def __init__(self, name: str = "", traces: Traces | None = None, proofs: Proofs | None = None) -> None:
        self._name = name  # of the module in its model
        self._traces = Traces() if traces is None else traces
        self._proofs = Proofs() if proofs is None else proofs
        self._trace: Trace | None = None
        self._fused: Fused | None = None
        self._is_proved = False

    @property
    def fused(self) -> int:
        """How many batch norms run fused."""
        return len(self._fused.norms) if self._fused is not None and self._is_proved else 0

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The module's result, by its own forward where fused steps cannot give it."""
        if not module.training or not _fuses_now():
            return type(module).forward(module, *arguments, **keywords)
        trace = self._traces.of(module)
        if trace is not self._trace and (self._trace is None or not _recomputes()):
            self._renew(module, trace)
        is_usable = self._fused is not None and _are_images((*arguments, *keywords.values()))
        if is_usable and not self._is_proved and torch.is_grad_enabled():
            self._compare(module, arguments, keywords)
        fused = self._fused if is_usable and self._is_proved else None
        forward = type(module).forward if fused is None else fused.function
        return forward(module, *arguments, **keywords)

    def _renew(self, module: nn.Module, trace: Trace) -> None:
        self._trace = trace
        mark(module, trace.graph)
        self._fused = fuse(module, trace, self._proofs.refused_inside(module, self._name))
        self._is_proved = self._fused is not None and self._proofs.cover(self._name, self._names_of(self._fused.norms, module))
        if self._fused is None and not trace.has_hooks:  # with hooks it may be fused once they are gone
            overrides.release(module, FUSED)
            if trace.graph is None:
                install_on_children(module, self._name, self._traces, self._proofs)

    def _compare(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Fuse what gives torch's own results on this input; the rest runs layer by layer from now on."""
        while self._fused is not None and not self._is_proved:
            # in float32 whatever the step's own precision: bfloat16 would hide what differs behind its rounding
            with torch.autocast("cpu", enabled=False):
                verdict = compare(
                    module, self._fused, _widened(arguments), dict(zip(keywords, _widened(keywords.values()), strict=True))
                )
            if verdict is None:  # perhaps the next input can be compared
                return
            if verdict.is_same:
                self._proofs.accept(self._name, self._names_of(self._fused.norms, module))
                self._is_proved = True
            elif verdict.differing:
                self._proofs.refuse(self._names_of(verdict.differing, module))
                assert self._trace is not None
                self._renew(module, self._trace)
            else:
                self._give_up(module)

    def _give_up(self, module: nn.Module) -> None:
        self._proofs.give_up(self._name)
        self._fused = None
        overrides.release(module, FUSED)
        install_on_children(module, self._name, self._traces, self._proofs)

    def _names_of(self, norms: Collection[nn.Module], module: nn.Module) -> list[str]:
        return [name for name, each in module.named_modules(prefix=self._name) if each in norms]

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedForward:
        return FusedForward(self._name, None, copy.deepcopy(self._proofs, memo))  # a copy traces its own module


def _fuses_now() -> bool:
    return precision_now() is not None and not any_global_hooks() and is_eager_memory()


def _recomputes() -> bool:
    """Whether a backward pass calls this again, as checkpoints of activations do: it must compute what the forward pass did."""
    return bool(torch._C._current_graph_task_id() != -1)


def _widened(tensors: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(each.float() if each.dtype is torch.bfloat16 else each for each in tensors)


def _are_images(arguments: tuple[Any, ...]) -> bool:
    tensors = all(isinstance(each, Tensor) and each.device.type == "cpu" and each.numel() for each in arguments)
    allowed = (torch.float32, torch.bfloat16) if torch.is_autocast_enabled("cpu") else (torch.float32,)
    return tensors and all(each.dtype in allowed for each in arguments if each.dim() == 4)


def _forward(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:
    override = overrides.override_of(self)
    if torch.compiler.is_compiling() or override is None or override.fused is None:
        return type(self).forward(self, *arguments, **keywords)
    return override.fused(self, arguments, keywords)


def install(module: nn.Module, name: str, traces: Traces, proofs: Proofs) -> None:
    """On this module; where it cannot be traced, its first call in training moves this to its children."""
    if type(module).forward is nn.Module.forward or name in proofs.given_up:  # a list or a dict of modules is never called
        install_on_children(module, name, traces, proofs)
    elif is_container(module) and overrides.owner_of(module) is None:
        overrides.take(module, FUSED, _forward).fused = FusedForward(name, traces, proofs)


def install_on_children(module: nn.Module, name: str, traces: Traces, proofs: Proofs) -> None:
    for child_name, child in module.named_children():
        if child_name != "parametrizations":
            install(child, f"{name}.{child_name}".lstrip("."), traces, proofs)


def remove(root: nn.Module) -> None:
    """From this module and from all inside it."""
    for module in root.modules():
        overrides.release(module, FUSED)


def count_fused(root: nn.Module) -> int:
    """How many batch norms run fused now."""
    records = (overrides.override_of(module) for module in root.modules())
    return sum(record.fused.fused for record in records if record is not None and record.fused is not None)
