"""How a model was called when it was captured, and which later calls are alike."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autosparse.serving.example import SIMPLE, Example


class CannotCaptureError(RuntimeError):
    """The model's Python code depends on its data in a way that a graph cannot hold."""


@dataclass(frozen=True)
class _Mark:
    """Stands for a tensor of the example, by its place there."""

    place: int


@dataclass(frozen=True)
class Signature:
    """A forward's parameters, the structure of its arguments, and by place the values of those that are no tensors."""

    parameters: inspect.Signature
    structure: pytree.TreeSpec
    constants: dict[int, Any]
    tensor_places: list[int]  # where in the example the tensors of the arguments are, in the order of the arguments
    example_leaves: list[Any]
    example_structure: pytree.TreeSpec
    direct: int | None  # the number of arguments where all are tensors and none has a default

    def tensors(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> list[Tensor] | None:
        """The tensors of a call like the example's; None for any other call, be it right or wrong."""
        if not named and len(inputs) == self.direct:
            return list(inputs) if all(isinstance(value, Tensor) for value in inputs) else None
        try:
            leaves, structure = pytree.tree_flatten(_arguments(self.parameters, inputs, named))
        except TypeError:
            return None
        if structure != self.structure or not all(_same(leaves[place], value) for place, value in self.constants.items()):
            return None
        tensors = [leaf for place, leaf in enumerate(leaves) if place not in self.constants]
        return tensors if all(isinstance(leaf, Tensor) for leaf in tensors) else None

    def call(self, tensors: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The example's positional and keyword arguments with these for its tensors: what it left out stays out."""
        values = dict(zip(self.tensor_places, tensors, strict=True))
        leaves = [values[leaf.place] if isinstance(leaf, _Mark) else leaf for leaf in self.example_leaves]
        args, named = pytree.tree_unflatten(leaves, self.example_structure)
        return args, named


def signature_of(model: nn.Module, example: Example) -> Signature:
    """The signature of this call; an argument that is neither a tensor nor a plain value cannot be captured."""
    given, given_structure = pytree.tree_flatten((example.args, example.named))
    marked = [_Mark(place) if isinstance(leaf, Tensor) else leaf for place, leaf in enumerate(given)]
    args, named = pytree.tree_unflatten(marked, given_structure)
    try:
        parameters = inspect.signature(model.forward)
        leaves, structure = pytree.tree_flatten(_arguments(parameters, args, named))
    except (TypeError, ValueError) as error:
        raise CannotCaptureError(f"its arguments are not known: {error}") from None
    constants = {place: leaf for place, leaf in enumerate(leaves) if not isinstance(leaf, _Mark)}
    for value in constants.values():
        if not isinstance(value, SIMPLE):
            raise CannotCaptureError(f"it takes a {type(value).__name__}")
    required = all(_required(parameter) for parameter in parameters.parameters.values())
    direct = len(leaves) if required and not constants and len(leaves) == len(parameters.parameters) else None
    places = [leaf.place for leaf in leaves if isinstance(leaf, _Mark)]
    return Signature(parameters, structure, constants, places, marked, given_structure, direct)


def _arguments(parameters: inspect.Signature, inputs: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    bound = parameters.bind(*inputs, **named)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in parameters.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments[name] = dict(sorted(arguments[name].items()))  # they have no order of their own
    return arguments


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and parameter.default is inspect.Parameter.empty


def _same(value: Any, constant: Any) -> bool:
    return type(value) is type(constant) and bool(value == constant)
