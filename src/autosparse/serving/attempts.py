"""The ways to serve a model, the fastest first: the first one that computes what the model computes is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from autosparse.kernels.library import Engine
from autosparse.serving.agreement import NARROW_TOLERANCE, TOLERANCE, DiffersError, agree, by_how_much, difference
from autosparse.serving.capture import one_line
from autosparse.serving.choices import Choice, Choices
from autosparse.serving.copies import working_copy
from autosparse.serving.example import Example
from autosparse.serving.layerwise import has_convolutions, replace_layers
from autosparse.serving.linear import weights_in_caches
from autosparse.serving.native import LayerChoice
from autosparse.serving.preparation import Preparation
from autosparse.serving.quantized.calibration import Calibration, ForgottenError, Quantization
from autosparse.serving.quantized.memory import PlainRows, forget_replaced, holders, without_floats
from autosparse.serving.reasons import layers_in_torch, layers_of
from autosparse.serving.rewrite import captured
from autosparse.serving.signature import CannotCaptureError

# the whole model as a graph; its convolutional parts as graphs and its linear layers; its linear layers; nothing
GRAPH, PARTS, LINEARS, TORCH = ROUTES = ("graph", "parts", "linears", "torch")
ONE_BY_ONE = "the model keeps its structure and its layers are replaced one by one"
REST = "everything but its linear layers and convolutions stays in torch"
BY_DESIGN = f"{ONE_BY_ONE}, since generate() needs it: {REST}"


@dataclass(frozen=True)
class Route:
    """Which way a model is served, the choices on it (None to measure again), why no faster way was taken, and ranges."""

    name: str
    choices: list[Choice] | None
    notes: list[str]
    calibration: Calibration = field(default_factory=Calibration)


@dataclass(frozen=True)
class Served:
    """A module that computes what the model computes, how it came about, and the tensors of the model itself."""

    module: nn.Module
    route: Route
    in_torch: list[LayerChoice]
    layers: int
    state: Mapping[str, Tensor | PlainRows]  # of what became integers no float32 copy is kept
    quantization: Quantization | None = None  # None where it was asked for and computed something else


def serve(
    model: nn.Module,
    example: Example,
    engine: Engine | None,
    threads: int,
    remembered: Route | None,
    quantization: Quantization | None = None,
) -> Served:
    """The model served in the first way that works; remembered choices that do not fit the model are a ForgottenError.

    Where fewer bits compute something else, float32 is next: nothing is gained by trying every part of the model in them.
    """
    copied, _ = working_copy(model)
    expected = _run(copied, example)
    preparation = Preparation(engine, threads, weights_in_caches(model), Choices(), quantization=quantization)
    if remembered is not None:
        return _again(model, example, expected, remembered, preparation)
    try:
        return _first(model, example, expected, preparation, [])
    except DiffersError as error:
        assert quantization is not None
        note = f"float32 is used, since in {quantization.precision} {error}"
        return _first(model, example, expected, replace(preparation, quantization=None), [note])


def _again(model: nn.Module, example: Example, expected: Any, remembered: Route, preparation: Preparation) -> Served:
    """Served as before."""
    preparation = replace(preparation, choices=Choices(remembered.choices), calibration=remembered.calibration)
    try:
        return _attempt(remembered.name, model, example, expected, preparation, list(remembered.notes))
    except (CannotCaptureError, DiffersError) as error:
        raise ForgottenError(f"it cannot be served as {remembered.name!r}: {error}") from None


def _first(model: nn.Module, example: Example, expected: Any, preparation: Preparation, notes: list[str]) -> Served:
    """Served in the first way that works; in fewer bits than float32 a way that differs is a DiffersError."""
    for name in _routes(model, notes):
        fresh = replace(preparation, choices=Choices(), calibration=Calibration(), reasons={})
        try:
            return _attempt(name, model, example, expected, fresh, notes)
        except CannotCaptureError as error:
            notes += _notes(name, error)
        except DiffersError as error:
            if preparation.quantization is not None:
                raise
            notes += _notes(name, error)
    raise AssertionError("the last way is the model itself")


def _routes(model: nn.Module, notes: list[str]) -> Iterator[str]:
    if callable(getattr(model, "generate", None)):
        notes.append(BY_DESIGN)
    else:
        yield GRAPH
    if has_convolutions(model):
        yield PARTS
    yield LINEARS
    yield TORCH


def _notes(route: str, error: Exception) -> list[str]:
    if route == GRAPH and isinstance(error, CannotCaptureError):
        return [f"{ONE_BY_ONE}, since torch.fx cannot capture it ({error}): {REST}"]
    what = {GRAPH: f"{ONE_BY_ONE}: {REST}", PARTS: "its convolutions stay in torch", LINEARS: "all layers stay in torch"}
    return [f"{what[route]}, since otherwise it computes something else ({error})"]


def _attempt(
    name: str, model: nn.Module, example: Example, expected: Any, preparation: Preparation, notes: list[str]
) -> Served:
    copied, state = working_copy(model)
    layers, held = layers_of(copied), holders(copied)
    module = copied
    if name == GRAPH:
        module = captured(copied, example, preparation)
    elif name != TORCH:
        replace_layers(copied, example, preparation, convolutions=name == PARTS)
    preparation.choices.finish()
    narrow, calibration = preparation.quantization, preparation.calibration
    tolerance = TOLERANCE if narrow is None else NARROW_TOLERANCE[narrow.precision]
    if not calibration.known and name != TORCH:
        calibration.difference = _compare(module, example, expected, tolerance)
    in_torch = layers_in_torch(layers, module, preparation)
    route = Route(name, preparation.choices.taken, notes, calibration)
    if narrow is None or narrow.precision != "int8":
        return Served(module, route, in_torch, len(layers), state, narrow)
    kept = without_floats(state, layers, held, module, {row.name for row in in_torch})
    forget_replaced(copied, module)
    return Served(module, route, in_torch, len(layers), kept, narrow)


def _compare(module: nn.Module, example: Example, expected: Any, tolerance: float) -> float:
    """By how much a served module differs on the example, if that is little."""
    try:
        result = _run(module, example)
        same = agree(result, expected, tolerance)
        off = difference(result, expected)
    except Exception as error:  # a model that looks into its layers may find others there
        raise DiffersError(one_line(error)) from error
    if not same:
        raise DiffersError(by_how_much(off) if off > tolerance else "its outputs have other structures, shapes or values")
    return off


def _run(module: nn.Module, example: Example) -> Any:
    """The same random numbers every time, and others than while capturing, where they would become constants."""
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(0)
    try:
        return example.run(module)
    finally:
        torch.default_generator.set_state(state)
