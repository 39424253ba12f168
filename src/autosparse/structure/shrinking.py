"""Dead channels removed from a model: a smaller dense network of the user's own classes that computes the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autosparse.common.modes import same_mode_after
from autosparse.cost.recorder import ExampleInput, call_arguments, same_random_state
from autosparse.structure.cutting import Plan, cut, plan_of
from autosparse.structure.dead import Findings, examine
from autosparse.structure.graph import ChannelGraph, follow
from autosparse.structure.report import Shrinkage, describe
from autosparse.structure.tracing import CannotFollow

TOLERANCE = 1e-3  # of the largest output: other orders of summation in a deep network, and nothing more


def shrink(model: nn.Module, example_input: ExampleInput) -> Shrinkage:
    """Remove the dead channels of a plain model, in place; its outputs stay equal to rounding. Make the optimizer afterwards.

    A channel is dead if every layer that reads it multiplies it by 0, or reads 0 or a constant that its bias can take.
    """
    refuse_attached(model)
    graph = follow(model, example_input, tensors_of(model), both_modes=True)
    findings = examine(graph, model)
    attempts = [findings, *([findings.without(_heads(graph), _HEADS_STAY)] if _heads(graph) & findings.dead else [])]
    error: Exception | None = None
    for attempt in attempts:
        try:
            plan = _rehearse(model, example_input, graph, attempt)
        except _Different as failure:
            error = failure
            continue
        report = describe(model, graph, attempt, plan)
        cut(model, plan)
        return report
    raise CannotFollow(f"{error}; the model was left as it is") from error


_HEADS_STAY = "the forward pass of its module does not run with fewer heads"


class _Different(RuntimeError):
    """The smaller model does not do what the model does."""


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def refuse_attached(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "parametrizations", None):
            raise ValueError(f"{name or 'the model'} has parametrizations: call sp.finalize() or remove them, then shrink")


def _heads(graph: ChannelGraph) -> set[int]:
    return {channel for units in graph.units if units.kind == "heads" for channel in units.ids.tolist()}


def _rehearse(model: nn.Module, example_input: ExampleInput, graph: ChannelGraph, findings: Findings) -> Plan:
    """Cut a copy first and compare what it computes."""
    plan = plan_of(model, graph, findings)
    if not plan.kept:
        return plan
    smaller = copy.deepcopy(model)
    try:
        cut(smaller, plan)
        expected, found = run_smaller(model, example_input), run_smaller(smaller, example_input)
    except Exception as error:
        raise _Different(f"the smaller model does not run: {type(error).__name__}: {error}") from error
    for one, other in zip(expected, found, strict=True):
        scale = float(one.abs().max()) if one.numel() else 0.0
        difference = float((one - other).abs().max()) if one.shape == other.shape and one.numel() else np.inf
        if one.shape != other.shape or (one.numel() and not difference <= TOLERANCE * max(scale, 1e-6)):
            raise _Different(f"the smaller model gives other outputs: they differ by {difference:.1e} of {scale:.1e}")
    return plan


def run_smaller(model: nn.Module, example_input: ExampleInput) -> list[Tensor]:
    """In evaluation mode, as double-precision tensors."""
    args, kwargs = call_arguments(example_input)
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    args, kwargs = pytree.tree_map_only(Tensor, lambda each: each.to(device), (args, kwargs))
    with same_mode_after(model, inside=False), torch.no_grad(), same_random_state(model, args, kwargs):
        output: Any = model(*args, **kwargs)
    leaves = pytree.tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    return [leaf.double() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def shrink_for(example_input: ExampleInput | None) -> Callable[[nn.Module], Shrinkage]:
    """What `finalize(shrink=True)` does, with its input asked for before anything is changed."""
    if example_input is None:
        raise ValueError("finalize(shrink=True) follows the channels through the model: give it an example_input")
    return partial(shrink, example_input=example_input)
