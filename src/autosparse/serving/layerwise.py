"""For models that cannot be captured whole: the structure stays, its convolutional parts and its layers are replaced."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autosparse.kernels.library import Engine
from autosparse.serving.capture import CannotCaptureError, Examples, capture, with_shapes
from autosparse.serving.fold import fold
from autosparse.serving.linear import PackedLinear, weights_in_caches
from autosparse.serving.rewrite import use_native_regions, use_packed_linears


def replace_layers(model: nn.Module, examples: Examples, engine: Engine | None, threads: int) -> list[str]:
    """In place; returns notes."""
    if engine is None:
        return []
    seen = _inputs(model, examples)
    notes = _convolutional_parts(model, seen, engine, threads)
    made: dict[nn.Module, PackedLinear] = {}
    hot = weights_in_caches(model)
    for name, layer in list(model.named_modules()):
        # a subclass may be read by its parent instead of called (nn.MultiheadAttention does that)
        if type(layer) is not nn.Linear or _read_by_parent(model, name):
            continue
        if layer not in made:
            made[layer] = PackedLinear(name, layer, engine, threads)
            made[layer].measure(1, hot)  # decoding goes token by token
            if layer in seen:
                (first, *_) = seen[layer]
                if isinstance(first, Tensor):
                    made[layer].measure(max(1, first.shape[:-1].numel()), hot)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, made[layer])
    return notes


def _read_by_parent(model: nn.Module, name: str) -> bool:
    parent = model.get_submodule(name.rpartition(".")[0])
    return isinstance(parent, nn.MultiheadAttention | nn.TransformerEncoderLayer)


def _inputs(model: nn.Module, examples: Examples) -> dict[nn.Module, tuple[object, ...]]:
    """The first inputs that every module gets."""
    seen: dict[nn.Module, tuple[object, ...]] = {}

    def record(module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        if not named:
            seen.setdefault(module, tuple(each.clone() if isinstance(each, Tensor) else each for each in inputs))

    handles = [module.register_forward_pre_hook(record, with_kwargs=True) for module in model.modules()]
    try:
        with torch.no_grad():
            model(*examples)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _convolutional_parts(
    module: nn.Module, seen: dict[nn.Module, tuple[object, ...]], engine: Engine, threads: int
) -> list[str]:
    """The largest parts with convolutions that can be captured, from the outside in."""
    notes = []
    for name, child in list(module.named_children()):
        if not any(isinstance(part, nn.Conv2d) for part in child.modules()):
            continue
        if child in seen:
            part = nn.Sequential(child) if isinstance(child, nn.Conv2d) else child
            try:
                graph = fold(capture(part, seen[child]))
            except CannotCaptureError:
                pass
            else:
                with_shapes(graph, seen[child])
                notes += use_native_regions(graph, seen[child], engine, threads)
                use_packed_linears(graph, engine, threads)
                setattr(module, name, graph)
                continue
        notes += _convolutional_parts(child, seen, engine, threads)
    return notes
