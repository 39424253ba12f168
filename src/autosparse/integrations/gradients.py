"""What happens to gradients around a framework's clipping: thresholds are left out of it, a penalty comes after it."""

from __future__ import annotations

from collections.abc import Callable
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
        self._aside = {each: each.grad for each in self._sp.thresholds() if each.grad is not None}
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
        # once a step, not once a batch of an accumulated step
        with torch.enable_grad():
            penalty = self._sp.penalty()
        if isinstance(penalty, Tensor):
            weights = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
            for weight, gradient in zip(weights, torch.autograd.grad(penalty, weights, allow_unused=True), strict=True):
                if gradient is not None:
                    weight.grad = gradient if weight.grad is None else weight.grad + gradient
