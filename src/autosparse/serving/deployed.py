"""The module that `deploy` returns, and how each of its layers is computed."""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from autosparse.kernels.library import Engine
from autosparse.serving.capture import Examples
from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import LayerChoice, NativeModule, NativeRegion

_LIVE: WeakSet[Deployed] = WeakSet()


class Deployed(nn.Module):
    """A model for evaluation only; other methods of the original (such as `encode`) are reached through it."""

    def __init__(self, module: nn.Module, examples: Examples, engine: Engine | None, threads: int, notes: list[str]) -> None:
        super().__init__()
        self.module, self.threads, self.notes = module, threads, notes
        super().train(False)
        _LIVE.add(self)

    def use_one_thread(self) -> None:
        """In a forked child, which has none of its parent's OpenMP threads."""
        self.threads = 1
        for part in self.modules():
            if isinstance(part, NativeModule):
                part.use_one_thread()

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with torch.no_grad():
            return self.module(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def train(self, mode: bool = True) -> Deployed:
        if mode:
            raise RuntimeError("a deployed model cannot be trained: train the plain model, then deploy it again")
        return self

    def _apply(self, *_: Any, **__: Any) -> Deployed:
        raise RuntimeError("a deployed model stays on the CPU in float32; move or cast the plain model instead")

    def layers(self, *examples: Tensor) -> list[LayerChoice]:
        """How every layer is computed; with example inputs, measured while they pass through the native regions."""
        choices: list[LayerChoice] = []

        def record(region: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            assert isinstance(region, NativeRegion)
            choices.extend(region.choices(list(inputs)))

        regions = [part for part in self.modules() if isinstance(part, NativeRegion)] if examples else []
        handles = [region.register_forward_pre_hook(record) for region in regions]
        if handles:
            self(*examples)
        for handle in handles:
            handle.remove()
        return choices + [part.choice() for part in self.modules() if isinstance(part, PackedLinear)]


def _after_fork() -> None:
    """OpenMP would wait for threads that the child does not have, in torch's operations as in ours."""
    if _LIVE:
        torch.set_num_threads(1)
        for deployed in list(_LIVE):
            deployed.use_one_thread()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
