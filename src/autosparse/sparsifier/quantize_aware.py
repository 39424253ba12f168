"""`quantize_aware`: fine-tuning that feels int8, with the zeros of a sparse model in place."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from autosparse.common.batches import feed
from autosparse.common.modes import same_mode_after
from autosparse.common.warnings import warn
from autosparse.common.words import few
from autosparse.layer import Layer, Place, is_transposed_linear
from autosparse.quantization import fake
from autosparse.quantization.ranges import Observer, RangeKind
from autosparse.sparsifier.selection import refuse_wrapped
from autosparse.sparsifier.sparsifier import Sparsifier

_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class QuantizationAware:
    """A model whose linear and convolution layers compute with rounded inputs and weights. Made by `quantize_aware`."""

    def __init__(self, model: nn.Module, sp: Sparsifier | None, ranges: Mapping[str, tuple[float, float]]) -> None:
        self.model, self.ranges = model, dict(ranges)
        self._sp = sp

    def finalize(self) -> nn.Module:
        """The plain model again, its weights rounded; of a sparsified one this is `sp.finalize()`."""
        if self._sp is not None:
            return self._sp.finalize()
        fake.remove(self.model)
        return self.model


def quantize_aware(
    model: nn.Module | Sparsifier,
    calibration: Iterable[Any],
    *,
    ranges: RangeKind = "minmax",
    exclude: Sequence[str] = (),
) -> QuantizationAware:
    """Let linear and convolution layers train as they will compute in int8; zeros stay zeros.

    `calibration` batches fix the ranges of the layers' inputs. A batch is what the model takes: a tensor, a dict of keyword
    inputs, or a tuple or list whose first element is the input. Layers that match a pattern of `exclude` stay as they are.
    """
    return attach(model, calibration, feed, ranges, exclude)


def attach(
    model: nn.Module | Sparsifier,
    calibration: Iterable[Any],
    run: Callable[[nn.Module, Any], object],
    ranges: RangeKind = "minmax",
    exclude: Sequence[str] = (),
) -> QuantizationAware:
    """`quantize_aware` with a way of one's own to give a batch to the model."""
    sp, net = (model, model.model) if isinstance(model, Sparsifier) else (None, model)
    if not isinstance(net, nn.Module):
        raise TypeError(f"quantize_aware takes a model or a Sparsifier, got {type(model).__name__}")
    refuse_wrapped(net)
    if fake.is_quantization_aware(net):
        raise ValueError("the model trains with fake quantization already: finalize it first")
    places = _places(net, exclude)
    if sp is not None:
        sp.compute("dense")  # the kernels give no gradient to weights that are rounded to zero
    observed = _observe(net, places, calibration, run, ranges)
    unreached = [name for name in places if name not in observed]
    if not observed:
        raise ValueError("the calibration batches reach no linear or convolution layer: there is nothing to quantize")
    if unreached:
        warn(f"calibration does not reach {few(unreached)}: left in float")
    tied = _tied(net, sp)
    for name, (low, high) in observed.items():
        fake.attach_input(places[name].module, low, high)
        if places[name].key not in tied:
            fake.attach_weight(places[name].module, places[name].tensor, _channel_dim(places[name]))
    return QuantizationAware(net, sp, observed)


def attach_as_saved(model: nn.Module | Sparsifier, state: Mapping[str, Any]) -> None:
    """Before load_state_dict: give the model the fake quantization that a saved state has, if any."""
    sp, net = (model, model.model) if isinstance(model, Sparsifier) else (None, model)
    inputs, weights = fake.saved_places(state)
    if not inputs or fake.is_quantization_aware(net):
        return
    if sp is not None:
        sp.compute("dense")
    modules = dict(net.named_modules())
    missing = [name for name in (*inputs, *(name for name, _ in weights)) if name not in modules]
    if missing:
        raise ValueError(f"the saved state quantizes {', '.join(missing[:3])}, which this model does not have")
    for name in inputs:
        fake.attach_input(modules[name], 0.0, 0.0)
    for name, tensor in weights:
        fake.attach_weight(modules[name], tensor, _channel_dim(Place(modules[name], name, tensor)))


def _places(model: nn.Module, exclude: Sequence[str]) -> dict[str, Place]:
    modules = {name: module for name, module in model.named_modules() if ".parametrizations." not in f".{name}."}
    found = {name: module for name, module in modules.items() if isinstance(module, _KINDS) or is_transposed_linear(module)}
    for pattern in exclude:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in found):
            raise ValueError(f"exclude pattern {pattern!r} matches no linear or convolution layer")
    kept = {
        name: module for name, module in found.items() if not any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude)
    }
    return {name: Place(module, name, "weight") for name, module in kept.items()}


def _channel_dim(place: Place) -> int:
    return Layer((place,), torch.Size()).channel_dim


def _tied(model: nn.Module, sp: Sparsifier | None) -> set[str]:
    """Keys of weights that several modules use: an embedding that shares its weight reads it unrounded."""
    keys: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for tensor, value in module._parameters.items():
            if value is not None and not parametrize.is_parametrized(module, tensor):
                keys.setdefault(id(value), []).append(f"{name}.{tensor}".lstrip("."))
    tied = {key for names in keys.values() if len(names) > 1 for key in names}
    shared = [layer for layer in (sp.layers if sp is not None else []) if len(layer.places) > 1]
    return tied | {place.key for layer in shared for place in layer.places}


def _observe(
    model: nn.Module,
    places: Mapping[str, Place],
    calibration: Iterable[Any],
    run: Callable[[nn.Module, Any], object],
    kind: RangeKind,
) -> dict[str, tuple[float, float]]:
    """The range of every layer's input over the batches, of those that were reached."""
    observers = {name: Observer(kind) for name in places}
    reached: set[str] = set()

    def look(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].is_floating_point() and inputs[0].numel():
            try:
                observers[name].update(inputs[0])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            reached.add(name)

    batches = 0
    with ExitStack() as hooks, same_mode_after(model), torch.no_grad():
        for name, place in places.items():
            hooks.enter_context(place.module.register_forward_pre_hook(partial(look, name)))
        model.eval()
        for batch in calibration:
            batches += 1
            run(model, batch)
    if not batches:
        raise ValueError("calibration is empty: give at least one batch, to find the ranges of activations")
    return {name: observers[name].range() for name in places if name in reached}
