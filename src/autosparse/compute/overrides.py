"""The one place where a module's forward is overridden: who has taken it, and what the forward in its place goes by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from autosparse.compute.planner import DENSE, FLOAT32, Passes

if TYPE_CHECKING:
    from autosparse.compute.fused_forward import FusedForward

ATTRIBUTE = "autosparse_override"
SPARSE, FUSED, LARGEST_INPUTS, PLAIN_PASS, USER = "sparse layer", "fused model", "largest inputs", "plain pass", "user"


@dataclass
class Override:
    """What is known of one module. Without an owner its forward is its own, and only the shape of its inputs is noted."""

    owner: str | None = None
    forward: Callable[..., Any] | None = None
    passes: Passes = DENSE
    input_shape: torch.Size | None = None
    precision: str = FLOAT32  # of these inputs
    planned_precision: str | None = None  # that `passes` are for; None: for all
    under_autocast: bool = False  # it was called so in training, in a type that no kernel takes
    fused: FusedForward | None = None
    # Of a convolution: "torch" as torch's own would be, "weight" as the weight lies, "any" where no user minds.
    result_format: str = "torch"

    def note_shape(self, shape: torch.Size, precision: str = FLOAT32) -> None:
        """Keep the largest of one precision: the last batch of an epoch may be a small one."""
        if self.input_shape is None or self.precision != precision or shape.numel() > self.input_shape.numel():
            self.input_shape, self.precision = shape, precision

    def passes_in(self, precision: str | None) -> Passes:
        """The passes that run sparse in a call of this precision."""
        return self.passes if self.planned_precision in (None, precision) else DENSE


def override_of(module: nn.Module) -> Override | None:
    return vars(module).get(ATTRIBUTE)


def owner_of(module: nn.Module) -> str | None:
    """Who has taken the module's forward: None if it is that of its class, USER if it is not one of ours."""
    forward, override = vars(module).get("forward"), override_of(module)
    if forward is None:
        return None
    is_ours = override is not None and getattr(forward, "__func__", None) is override.forward
    return override.owner if override is not None and is_ours else USER


def follow(module: nn.Module) -> Override:
    """The module's record, a new one if it has none; its forward stays as it is."""
    if ATTRIBUTE not in vars(module):
        setattr(module, ATTRIBUTE, Override())
    override: Override = vars(module)[ATTRIBUTE]
    return override


def take(module: nn.Module, owner: str, forward: Callable[..., Any]) -> Override:
    """Let `forward(module, ...)` run in place of the module's own."""
    if owner_of(module) not in (None, owner):
        raise RuntimeError(
            f"the forward of {type(module).__name__} is taken by the {owner_of(module)}, not free for the {owner}"
        )
    override = follow(module)
    override.owner, override.forward = owner, forward
    # A bound method is copied together with its module by deepcopy; a closure would stay with the original.
    module.forward = MethodType(forward, module)
    return override


def release(module: nn.Module, owner: str) -> None:
    """Give the module its own forward again, if this owner has taken it; a forward that the user put over ours stays."""
    override = override_of(module)
    if override is None or override.owner != owner:
        return
    if owner_of(module) == owner:
        del module.forward
    override.owner, override.forward, override.passes, override.fused = None, None, DENSE, None
    override.planned_precision = None
    if override.input_shape is None:
        forget(module)


def forget(module: nn.Module) -> None:
    """Drop what is known of a module that nobody has taken."""
    override = override_of(module)
    if override is not None and override.owner is None:
        delattr(module, ATTRIBUTE)
