"""For models that cannot be captured whole: the structure stays, its convolutional parts and its layers are replaced."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autosparse.kernels.library import Engine
from autosparse.serving.capture import CannotCaptureError, Examples
from autosparse.serving.linear import PackedLinear, weights_in_caches
from autosparse.serving.rewrite import captured

READ_BY_PARENT = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def replace_layers(model: nn.Module, examples: Examples, engine: Engine | None, threads: int) -> list[str]:
    """In place; returns notes."""
    if engine is None:
        return []
    inputs = _inputs(model, examples)
    notes = _convolutional_parts(model, inputs, engine, threads)
    packed: dict[nn.Module, PackedLinear] = {}
    hot = weights_in_caches(model)
    for name, layer in list(model.named_modules()):
        parent, _, leaf = name.rpartition(".")
        # a subclass may be read by its parent instead of called (nn.MultiheadAttention does that)
        if type(layer) is not nn.Linear or isinstance(model.get_submodule(parent), READ_BY_PARENT):
            continue
        if layer not in packed:
            packed[layer] = PackedLinear(name, layer, engine, threads)
            packed[layer].measure(1, hot)  # decoding goes token by token
            first = inputs.get(layer, (None,))[0]
            if isinstance(first, Tensor):
                packed[layer].measure(max(1, first.shape[:-1].numel()), hot)
        setattr(model.get_submodule(parent), leaf, packed[layer])
    return notes


def _inputs(model: nn.Module, examples: Examples) -> dict[nn.Module, tuple[object, ...]]:
    """The first inputs that every module gets."""
    first: dict[nn.Module, tuple[object, ...]] = {}

    def record(module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        if not named:
            first.setdefault(module, tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs))

    handles = [module.register_forward_pre_hook(record, with_kwargs=True) for module in model.modules()]
    try:
        with torch.no_grad():
            model(*examples)
    finally:
        for handle in handles:
            handle.remove()
    return first


def _convolutional_parts(
    module: nn.Module, inputs: dict[nn.Module, tuple[object, ...]], engine: Engine, threads: int
) -> list[str]:
    """The largest parts with convolutions that can be captured, from the outside in."""
    notes: list[str] = []
    for name, child in list(module.named_children()):
        if not any(isinstance(part, nn.Conv2d) for part in child.modules()):
            continue
        if child in inputs:
            part = nn.Sequential(child) if isinstance(child, nn.Conv2d) else child
            try:
                graph = captured(part, inputs[child], engine, threads, notes)
            except CannotCaptureError:
                pass
            else:
                setattr(module, name, graph)
                continue
        notes += _convolutional_parts(child, inputs, engine, threads)
    return notes
