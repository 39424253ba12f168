"""Which tensors of a model are sparsified: kinds of layers by default, globs, types or callables on demand."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from autosparse.common.warnings import warn
from autosparse.common.words import did_you_mean
from autosparse.layer import Layer, Place, is_transposed_linear
from autosparse.parametrizations import SparseParametrization

Pattern = str | type[nn.Module] | Callable[[str, nn.Module], bool]
Patterns = Pattern | Sequence[Pattern] | None

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_STANDARDISED = ("StdConv", "WeightStandardized", "WSConv")  # in the names that timm, transformers and others give them
UNNOTICED = 0.25  # of all weights: as much may be left dense without a word
_ORDER = "the order is: .to(), sparsify, then compile / DDP / fully_shard, then the optimizer, then bind"


def select(model: nn.Module, include: Patterns = None, exclude: Patterns = None) -> list[Layer]:
    """The layers to sparsify, in the order of the model; tied tensors are one layer."""
    everywhere = _places(model)
    candidates = [place for place in everywhere if _is_prunable(place)]
    named: set[str] = set()
    if include is not None:
        for pattern in _as_sequence(include):
            named |= {place.key for place in _included(pattern, everywhere)}
        candidates = [place for place in everywhere if place.key in named]
    for pattern in _as_sequence(exclude):
        if not any(_matches(pattern, place) for place in everywhere) and not _names_a_module(pattern, model):
            raise ValueError(_nothing("exclude", pattern, candidates))
        candidates = [place for place in candidates if not _matches(pattern, place)]
    if include is None:
        excluded = _as_sequence(exclude)
        _mention_others([place for place in everywhere if not any(_matches(pattern, place) for pattern in excluded)])
        candidates = _without_parametrized(_without_frozen(candidates))
    _mention_standardised(candidates)
    layers = _merge_tied(candidates, everywhere, named)
    if not layers:
        raise ValueError(
            "the model has no layer to sparsify: by default Conv, Linear, RNN and attention weights are taken; "
            "name other parameters with include=('name', ...)"
        )
    return layers


def _mention_standardised(candidates: list[Place]) -> None:
    """Say where zeros do not last: a weight whose mean is subtracted in the layer's own forward has none left."""
    places = [place for place in candidates if any(word in type(place.module).__name__ for word in _STANDARDISED)]
    if places:
        kind = type(places[0].module).__name__
        warn(
            f"{len(places)} layers, {places[0].name} first, standardise their weight in their own forward ({kind}): what they "
            "compute with has no zeros, so theirs make files smaller and nothing faster. Leave such layers out with "
            "exclude=(type(layer),) to spend the zeros elsewhere."
        )


def _places(model: nn.Module) -> list[Place]:
    """Every parameter of the model; a tied one at all its places."""
    places = []
    for module_name, module in model.named_modules():
        if ".parametrizations." in f".{module_name}.":
            continue
        _refuse_pruned(module, module_name)
        parametrized = getattr(module, "parametrizations", {})
        places += [Place(module, module_name, tensor) for tensor, value in module._parameters.items() if value is not None]
        places += [Place(module, module_name, tensor) for tensor in parametrized]
    return places


def _refuse_pruned(module: nn.Module, name: str) -> None:
    tensors = [tensor.removesuffix("_orig") for tensor in module._parameters if tensor.endswith("_orig")]
    masked = [tensor for tensor in tensors if f"{tensor}_mask" in module._buffers]
    if masked:
        raise ValueError(
            f"{name or 'the model'} is pruned by torch.nn.utils.prune: make that permanent first, "
            f"prune.remove(module, {masked[0]!r})"
        )
    for parametrizations in getattr(module, "parametrizations", {}).values():
        if any(isinstance(parametrization, SparseParametrization) for parametrization in parametrizations):
            raise ValueError("the model is sparsified already: call finalize() first, or sparsify a fresh model")


def _is_prunable(place: Place) -> bool:
    module, tensor = place.module, place.tensor
    if isinstance(module, (*_CONVOLUTIONS, nn.Linear)) or is_transposed_linear(module):
        return tensor == "weight"
    if isinstance(module, _RECURRENT):
        return tensor.startswith("weight_")
    return isinstance(module, nn.MultiheadAttention) and tensor.endswith("_weight")


def _as_sequence(patterns: Patterns) -> Sequence[Pattern]:
    if patterns is None:
        return ()
    return patterns if isinstance(patterns, Sequence) and not isinstance(patterns, str) else (patterns,)


def _matches(pattern: Pattern, place: Place) -> bool:
    if isinstance(pattern, str):
        parts = place.key.split(".")
        return any(fnmatch.fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))
    if isinstance(pattern, type):
        return isinstance(place.module, pattern)
    if callable(pattern):
        return bool(pattern(place.name, place.module))
    raise TypeError(f"include and exclude take globs, module types or callables (name, module) -> bool, got {pattern!r}")


def _included(pattern: Pattern, everywhere: list[Place]) -> list[Place]:
    """What one include pattern names: prunable tensors first, any other parameter only when no prunable one is meant."""
    matching = [place for place in everywhere if _matches(pattern, place)]
    if not matching:
        raise ValueError(_nothing("include", pattern, everywhere))
    return [place for place in matching if _is_prunable(place)] or matching


def _without_frozen(candidates: list[Place]) -> list[Place]:
    """Leave out the weights with requires_grad=False, which only `include` can name, and say which they are."""
    frozen = [place for place in candidates if _is_frozen(place)]
    if not frozen:
        return candidates
    if len(frozen) == len(candidates):
        raise ValueError(
            f"all {len(frozen)} layers that could be sparsified are frozen (requires_grad=False): unfreeze what is to be "
            f"trained, or name frozen ones with include=({frozen[0].name!r}, ...)"
        )
    names = ", ".join(place.name for place in frozen)
    are = "is left dense: its weight is" if len(frozen) == 1 else "are left dense: their weights are"
    warn(f"{names} {are} frozen (requires_grad=False). Name with include=({frozen[0].name!r}, ...) what is to be pruned.")
    return [place for place in candidates if place not in frozen]


def _without_parametrized(candidates: list[Place]) -> list[Place]:
    """Leave out weights that weight norm or the like computes, and say which they are; a model of nothing else is refused."""
    taken = [place for place in candidates if parametrize.is_parametrized(place.module, place.tensor)]
    if not taken or len(taken) == len(candidates):
        return candidates
    are = "is left dense: its weight has a parametrization" if len(taken) == 1 else "are left dense: they have parametrizations"
    warn(f"{', '.join(place.name for place in taken)} {are} already ({', '.join(sorted(set().union(*map(_kinds, taken))))}).")
    return [place for place in candidates if place not in taken]


def _kinds(place: Place) -> list[str]:
    return [type(other).__name__ for other in place.module.parametrizations[place.tensor]]  # type: ignore[index]


def _mention_others(places: Sequence[Place]) -> None:
    """Name large parameters that only `include` can choose, such as the experts of a mixture, which are no Linear modules."""
    sizes = {place.key: value.numel() for place in places if (value := _plain_parameter(place)) is not None}
    others = [place.key for place in places if place.key in sizes and not _is_prunable(place) and _is_matrix(place)]
    share = sum(sizes[key] for key in others) / max(1, sum(sizes.values()))
    if share > UNNOTICED:
        others.sort(key=lambda key: -sizes[key])
        names = ", ".join(others[:3]) + (" and others" if len(others) > 3 else "")
        warn(
            f"{share:.0%} of the model's weights are left dense ({names}): by default the weights of Conv, Linear, RNN and "
            f"attention modules are sparsified. Name others with include=({others[0]!r}, ...)."
        )


def _plain_parameter(place: Place) -> nn.Parameter | None:
    value = place.module._parameters.get(place.tensor)
    return None if value is None or is_lazy(value) else value


def _is_matrix(place: Place) -> bool:
    """Two sides at least, and trained: not a norm, a bias, an embedding, or what is frozen."""
    value = _plain_parameter(place)
    embeds = isinstance(place.module, nn.Embedding | nn.EmbeddingBag)
    return value is not None and value.requires_grad and not embeds and sum(side > 1 for side in value.shape) > 1


def _is_frozen(place: Place) -> bool:
    parameter = place.module._parameters.get(place.tensor)  # None under a parametrization, which is refused later
    return parameter is not None and not parameter.requires_grad


def _names_a_module(pattern: Pattern, model: nn.Module) -> bool:
    return isinstance(pattern, str) and any(fnmatch.fnmatchcase(name, pattern) for name, _ in model.named_modules())


def _nothing(argument: str, pattern: Pattern, places: Iterable[Place]) -> str:
    names = list(dict.fromkeys(place.name for place in places))
    others = f"; names are {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
    return f"{argument} pattern {pattern!r} matches nothing{did_you_mean(str(pattern), names, others)}"


def _merge_tied(candidates: list[Place], everywhere: list[Place], named: set[str]) -> list[Layer]:
    tied: dict[int, list[Place]] = {}
    for place in everywhere:
        if not parametrize.is_parametrized(place.module, place.tensor):
            tied.setdefault(id(place.module._parameters[place.tensor]), []).append(place)
    chosen = {place.key for place in candidates}
    layers, done = [], set()
    for place in candidates:
        if parametrize.is_parametrized(place.module, place.tensor):
            raise ValueError(
                f"{place.key} already has the parametrization {', '.join(_kinds(place))}: remove it first, "
                f"or exclude {place.name!r}"
            )
        parameter = place.module._parameters[place.tensor]
        assert parameter is not None
        if is_lazy(parameter):
            raise ValueError(f"{place.key} has no shape yet: run one forward pass of the lazy module, then sparsify")
        if id(parameter) in done:
            continue
        done.add(id(parameter))
        places = tied[id(parameter)]
        others = [other for other in places if other.key not in chosen]
        if others and place.key not in named:
            warn(
                f"{place.name} is left dense: its weight is tied to {', '.join(other.key for other in others)}, "
                f"which is not sparsified. Name it with include=({place.name!r}, ...) to sparsify both."
            )
            continue
        places = [place, *(other for other in places if other is not place)]
        layers.append(Layer(tuple(places), parameter.shape))
    return layers


def refuse_wrapped(model: nn.Module) -> None:
    """A compiled, parallel or sharded model came too early."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    wrappers = (DistributedDataParallel, DataParallel, FullyShardedDataParallel, FSDPModule)
    for module in model.modules():
        compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        if isinstance(module, wrappers) or compiled:
            raise ValueError(f"the model is wrapped already ({type(module).__name__}); {_ORDER}")
