"""The graph of a whole model in torch's basic operators, by torch.fx, from shapes alone: nothing is computed or changed."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils import _pytree as pytree

from autosparse.common.modes import same_mode_after
from autosparse.cost.recorder import ExampleInput, call_arguments, same_random_state


class CannotFollow(ValueError):
    """The channels of a model cannot be followed; the message names the module and why."""


@dataclass(frozen=True)
class Traced:
    """The operators of one forward pass; `keys` names the parameters and buffers among the placeholders."""

    nodes: tuple[fx.Node, ...]
    keys: Mapping[fx.Node, str]
    training: bool
    _starts: tuple[int, ...]
    _modules: tuple[str, ...]

    def module_of(self, place: int) -> str:
        """The name of the innermost module that runs the operator at this place."""
        before = bisect_right(self._starts, place) - 1
        return self._modules[before] if before >= 0 else ""


def trace(model: nn.Module, example_input: ExampleInput, training: bool) -> Traced:
    """The graph in training or evaluation mode; refuses a model that cannot be traced, with the module where it stopped."""
    args, kwargs = call_arguments(example_input)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    where = _Where()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        # a part that the user keeps in evaluation mode stays there
        stack.enter_context(same_mode_after(model, inside=None if model.training and training else training))
        stack.enter_context(same_random_state(model, (), {}))
        stack.enter_context(torch.no_grad())
        stack.enter_context(where.listening(model))
        with fake:
            inputs = pytree.tree_map_only(Tensor, lambda each: torch.empty(each.shape, dtype=each.dtype), (state, args, kwargs))

        def run(tensors: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return functional_call(model, tensors, args, kwargs)

        try:
            graph = make_fx(run, tracing_mode="real", pre_dispatch=True, _allow_non_fake_inputs=True)(*inputs).graph
        except Exception as error:  # whatever a user's forward does
            name, kind = where.deepest
            place = f"{name} ({kind})" if name else kind or type(model).__name__
            raise CannotFollow(
                f"the channels of the model cannot be followed: torch.fx cannot trace {place}: {_reason(error)}"
            ) from error
    nodes = tuple(graph.nodes)
    flat = [node for node in nodes if node.op == "placeholder"]
    starts, modules = where.sections()
    return Traced(nodes, dict(zip(flat, state, strict=False)), training, starts, modules)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "its forward decides by the values of a tensor" if "_local_scalar_dense" in lines[0] else lines[0]


class _Where:
    """Which module runs, by the number of operators recorded so far."""

    def __init__(self) -> None:
        self._running: list[tuple[str, str]] = []
        self._changes: list[tuple[int, str]] = []
        self.deepest = ("", "")

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        def enter(name: str, module: nn.Module, args: Any) -> None:
            self._running.append((name, type(module).__name__))
            self.deepest = self._running[-1]
            self._note()

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._running.pop()
            self.deepest = self._running[-1] if self._running else ("", "")
            self._note()

        with ExitStack() as hooks:
            for name, module in model.named_modules():
                hooks.enter_context(module.register_forward_pre_hook(partial(enter, name), prepend=True))
                hooks.enter_context(module.register_forward_hook(leave))
            yield

    def _note(self) -> None:
        mode = get_proxy_mode()
        if mode is not None:
            self._changes.append((len(mode.tracer.graph.nodes), self._running[-1][0] if self._running else ""))

    def sections(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Where each section of the graph begins, and its module; of several at one place the last one counts."""
        last = dict(self._changes)
        return tuple(last), tuple(last.values())
