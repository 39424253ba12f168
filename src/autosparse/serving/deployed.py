"""The module that `deploy` returns, and how each of its layers is computed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from autosparse.kernels.library import Engine
from autosparse.serving.example import Example
from autosparse.serving.linear import PackedLinear
from autosparse.serving.linear_times import seconds_of_linears
from autosparse.serving.native import LayerChoice, NativeModule, NativeRegion

if TYPE_CHECKING:
    from autosparse.serving.attempts import Served

_LIVE: WeakSet[Deployed] = WeakSet()


@dataclass(frozen=True)
class Prepared:
    """How a deployment came about: what `save` writes."""

    served: Served
    example: dict[str, Any]  # without its numbers
    threads: int
    instruction_set: str | None
    precision: str = "float32"
    keep: frozenset[str] = frozenset()  # layers that stay in float32


class Deployed(nn.Module):
    """A model for evaluation only; other methods of the original (such as `encode`) are reached through it."""

    prepared: Prepared | None = None

    def __init__(
        self, module: nn.Module, examples: tuple[Any, ...], engine: Engine | None, threads: int, notes: list[str]
    ) -> None:
        super().__init__()
        self.module, self.threads, self.notes = module, threads, notes
        super().train(False)
        _LIVE.add(self)

    @property
    def difference(self) -> float:
        """By how much its outputs differ from the plain model's on the example, as a fraction of their length."""
        return 0.0 if self.prepared is None else self.prepared.served.route.calibration.difference

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

    def save(self, folder: str | os.PathLike[str], force: bool = False) -> None:
        """Write it to a folder from which `autosparse.load_deployed` makes it again without measuring."""
        import_module("autosparse.serving.prepared").save(self, folder, force)

    def train(self, mode: bool = True) -> Deployed:
        if mode:
            raise RuntimeError("a deployed model cannot be trained: train the plain model, then deploy it again")
        return self

    def _apply(self, *_: Any, **__: Any) -> Deployed:
        raise RuntimeError("a deployed model stays on the CPU in float32; move or cast the plain model instead")

    def layers(self, *inputs: Any, **named: Any) -> list[LayerChoice]:
        """How every layer is computed, and why torch computes it; given inputs, measured while they pass.

        Inputs are given as to the model itself, or as one mapping of keyword arguments.
        """
        choices: list[LayerChoice] = []

        def record(region: nn.Module, values: tuple[Tensor, ...]) -> None:
            assert isinstance(region, NativeRegion)
            choices.extend(region.choices(list(values)))

        seconds: dict[PackedLinear, float] = {}
        if inputs or named:
            mapping = len(inputs) == 1 and isinstance(inputs[0], Mapping)
            example = Example.of(inputs[0] if mapping else Example(inputs, named))
            seconds = seconds_of_linears(self, lambda: example.run(self), self.threads)
            regions = [part for part in self.modules() if isinstance(part, NativeRegion)]
            with ExitStack() as hooks:
                for region in regions:
                    hooks.enter_context(region.register_forward_pre_hook(record))
                if regions:
                    example.run(self)
        for part in self.modules():
            if isinstance(part, PackedLinear):
                taken = seconds.get(part)
                choices.append(replace(part.choice(), microseconds=None if taken is None else 1e6 * taken))
        return choices + (self.prepared.served.in_torch if self.prepared is not None else [])


def _after_fork() -> None:
    """OpenMP would wait for threads that the child does not have, in torch's operations as in ours."""
    if _LIVE:
        torch.set_num_threads(1)
        for deployed in list(_LIVE):
            deployed.use_one_thread()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
