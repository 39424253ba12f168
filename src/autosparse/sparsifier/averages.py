"""Averaged copies of a sparsified model, such as the EMA that is served in the place of the last weights, made plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from autosparse.compute import fused_forward
from autosparse.compute.compute import Compute
from autosparse.cost import Recorder
from autosparse.layer import Layer
from autosparse.quantization import fake
from autosparse.sparsifier import plain
from autosparse.sparsifier.first_step import FirstStep
from autosparse.sparsifier.state import Restart


def finalize_copy(averaged: nn.Module, layers: Sequence[Layer], orders: plain.Orders) -> nn.Module:
    """Bake the copy's own effective weights in, with zeros wherever those of `layers` are."""
    model = _copy_inside(averaged, layers)
    copies = [_in_copy(layer, model) for layer in layers]
    masks = [layer.active() for layer in layers]
    plain.harden(copies)
    Compute().choose("dense", copies, model)
    fused_forward.remove(model)
    names = {place.module: place.module_name for layer in layers for place in layer.places}
    fake.remove(model)
    plain.bake(copies, {model.get_submodule(names[module]): order for module, order in orders.items()}, masks)
    _drop_hooks(model)
    return model


def _copy_inside(averaged: nn.Module, layers: Sequence[Layer]) -> nn.Module:
    """The copy of the sparsified model, out of wrappers that hold it as `module`."""
    model: Any = averaged
    while isinstance(model, nn.Module):
        if all(_is_copy(model, layer) for layer in layers):
            return model
        model = getattr(model, "module", None)
    raise ValueError(
        f"{type(averaged).__name__} is no averaged copy of the sparsified model: make it from the model after sparsify, "
        "with torch.optim.swa_utils.AveragedModel(model) or copy.deepcopy(model), and before finalize"
    )


def _is_copy(model: nn.Module, layer: Layer) -> bool:
    modules = dict(model.named_modules(remove_duplicate=False))
    copies = [(modules.get(place.module_name), place) for place in layer.places]
    return all(
        module is not None and module is not place.module and parametrize.is_parametrized(module, place.tensor)
        for module, place in copies
    )


def _in_copy(layer: Layer, model: nn.Module) -> Layer:
    places = [replace(place, module=model.get_submodule(place.module_name)) for place in layer.places]
    return replace(layer, places=tuple(places))


def _drop_hooks(model: nn.Module) -> None:
    """What the copy has of the run's own hooks."""
    for hooks in (model._forward_pre_hooks, model._forward_hooks, model._load_state_dict_post_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(hook, Restart) or isinstance(getattr(hook, "__self__", None), Recorder | FirstStep):
                del hooks[key]
                for flags in ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"):
                    getattr(model, flags).pop(key, None)
