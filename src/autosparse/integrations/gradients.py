"""What happens to gradients around a framework's clipping: thresholds are left out of it, a penalty comes after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosparse.sparsifier import Sparsifier


class Gradients:
    """Holds the thresholds' gradients from `set_aside` to the optimizer's step, where `hook` puts them back."""

    def __init__(self, sp: Sparsifier) -> None:
        self._sp = sp
        self._aside: dict[Tensor, Tensor] = {}

    def set_aside(self) -> None:
        thresholds = self._sp.thresholds()
        self._aside = {threshold: threshold.grad for threshold in thresholds if threshold.grad is not None}
        for threshold in self._aside:
            threshold.grad = None

    def put_back(self) -> None:
        for threshold, gradient in self._aside.items():
            threshold.grad = gradient
        self._aside = {}

    def hook(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A step pre-hook; gradients that a closure computes and clips are completed inside it."""
        closure: Callable[[], Any] | None = kwargs.get("closure")
        if closure is None:
            self._complete(optimizer)
            return args, kwargs

        def completed() -> Any:
            loss = closure()
            self._complete(optimizer)
            return loss

        return args, {**kwargs, "closure": completed}

    def _complete(self, optimizer: Optimizer) -> None:
        self.put_back()
        add_penalty(self._sp, [weight for group in optimizer.param_groups for weight in group["params"]])


def add_penalty(sp: Sparsifier, weights: Iterable[Tensor]) -> None:
    """Add the gradient of the method's penalty, once per step: as part of a loss it would count with every batch."""
    with torch.enable_grad():
        penalty = sp.penalty()
    if isinstance(penalty, Tensor):
        trained = [weight for weight in weights if weight.requires_grad]
        for weight, gradient in zip(trained, torch.autograd.grad(penalty, trained, allow_unused=True), strict=True):
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
