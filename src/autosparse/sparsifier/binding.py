"""How a Sparsifier hears of optimizer steps: torch's own step hooks, nothing patched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from autosparse.common.tensors import whole


class Binding:
    """Calls `before` once the gradients are there and `after` when a step was really taken.

    Several optimizers that step one after the other count as one step: the first one's start to the last one's end.
    """

    def __init__(self, optimizers: Sequence[Optimizer], before: Callable[[], bool], after: Callable[[], None]) -> None:
        self.optimizers = list(optimizers)
        self._before = before
        self._after = after
        self._begun = False  # a GradScaler may skip the first of several optimizers and not the last
        self._handles = [
            self.optimizers[0].register_step_pre_hook(self._pre),
            self.optimizers[-1].register_step_post_hook(self._post),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def scale(self) -> float:
        """What a GradScaler multiplied the gradients by, where a fused optimizer divides inside its step."""
        scale = getattr(self.optimizers[0], "grad_scale", None)
        return 1.0 if scale is None else float(scale)

    def state_of(self, parameter: Tensor) -> dict[str, Any]:
        """The optimizer's state of one parameter; empty before its first step."""
        for optimizer in self.optimizers:
            if parameter in optimizer.state:
                found: dict[str, Any] = optimizer.state[parameter]
                return found
        return {}

    def _pre(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer itself
        if closure is None:
            self._run_before(optimizer)
            return None
        pending = [True]  # LBFGS calls the closure many times: the work belongs to the first

        def after_backward() -> Any:
            loss = closure()
            if pending:
                pending.clear()
                self._run_before(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": after_backward}
        return (args[0], after_backward, *args[2:]), kwargs

    def _run_before(self, optimizer: Optimizer) -> None:
        self._begun = not _overflowed(optimizer) and not _is_rehearsal(optimizer)
        if self._begun and self._before():
            for each in self.optimizers:
                each.zero_grad(set_to_none=True)

    def _post(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._begun and not _overflowed(optimizer):
            self._begun = False
            self._after()


def _overflowed(optimizer: Optimizer) -> bool:
    """Fused optimizers get overflowing gradients and skip inside their step; others are not called at all."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _is_rehearsal(optimizer: Optimizer) -> bool:
    """torch.distributed.checkpoint fills an optimizer's state by a step at rate 0 with zero gradients: no step of the run."""
    if optimizer.state or any(float(group.get("lr", 1)) for group in optimizer.param_groups):
        return False
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return not any(each.grad is not None and bool(whole(each.grad).any()) for each in parameters)


def unwrap(optimizer: Any) -> Optimizer:
    """The torch optimizer inside a wrapper such as accelerate's, which has no hooks of its own."""
    while not isinstance(optimizer, Optimizer) or type(optimizer).__name__ == "AcceleratedOptimizer":
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise TypeError(f"bind takes a torch.optim.Optimizer, got {type(optimizer).__name__}")
        optimizer = inner
    return optimizer
