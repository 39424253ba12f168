"""How a sparsity budget spreads over layers. Shapes are (out, in, *kernel); sparsity is the fraction of zeros.

Layers named in `dense` lie outside the budget, as in RigL's code: the others have `sparsity` among themselves.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from autosparse.common.words import did_you_mean

Shapes = Mapping[str, Sequence[int]]


def _checked(shapes: Shapes, sparsity: float, dense: Collection[str]) -> dict[str, int]:
    """Validate the arguments that all distributions share; gives the number of weights of every layer."""
    if not shapes:
        raise ValueError("no layers were given; shapes needs at least one {name: shape}")
    if not 0.0 <= sparsity < 1.0:
        raise ValueError(f"sparsity is {sparsity}; it is the fraction of zeros and must lie in [0, 1)")
    if isinstance(dense, str):
        raise TypeError(f"dense is the string {dense!r}; give a collection of layer names, such as ({dense!r},)")
    for name in dense:
        if name not in shapes:
            hint = did_you_mean(name, shapes, otherwise=f"; the layers are {', '.join(list(shapes)[:5])}, ...")
            raise ValueError(f"dense names {name!r}, which is not among the layers{hint}")
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    for name, size in sizes.items():
        if not shapes[name] or size < 1:
            raise ValueError(f"layer {name!r} has shape {tuple(shapes[name])}; every layer needs at least one weight")
    return sizes


def uniform(shapes: Shapes, sparsity: float, dense: Collection[str] = ()) -> dict[str, float]:
    """Every layer gets `sparsity`, those named in `dense` get 0: the overall sparsity is then lower."""
    _checked(shapes, sparsity, dense)
    return {name: 0.0 if name in dense else sparsity for name in shapes}


def er(shapes: Shapes, sparsity: float, dense: Collection[str] = ()) -> dict[str, float]:
    """Erdos-Renyi: density in proportion to (in + out) / (in * out), whatever the kernel; exact over the sparse layers."""
    return _random_graph(shapes, sparsity, dense, lambda shape: (shape[0] + shape[1]) / (shape[0] * shape[1]))


def erk(shapes: Shapes, sparsity: float, dense: Collection[str] = ()) -> dict[str, float]:
    """Erdos-Renyi-kernel: density in proportion to (in + out + kh + kw) / (in * out * kh * kw); exact over sparse layers."""
    return _random_graph(shapes, sparsity, dense, lambda shape: sum(shape) / math.prod(shape))


def _random_graph(
    shapes: Shapes, sparsity: float, dense: Collection[str], scale_of: Callable[[Sequence[int]], float]
) -> dict[str, float]:
    sizes = _checked(shapes, sparsity, dense)
    sparse = [name for name in shapes if name not in dense]
    for name in sparse:
        if len(shapes[name]) < 2:
            raise ValueError(
                f"layer {name!r} has shape {tuple(shapes[name])}; er and erk need (out, in, *kernel): "
                "name it in dense, or use uniform"
            )
    budget, full = (1.0 - sparsity) * sum(sizes[name] for name in sparse), 0
    densities = dict.fromkeys(shapes, 1.0)
    scales = {name: scale_of(shapes[name]) for name in sparse}
    # A layer whose share exceeds all its weights becomes dense; what it cannot use raises the shares of the others.
    while sparse:
        share = (budget - full) / sum(sizes[name] * scales[name] for name in sparse)
        fitting = [name for name in sparse if share * scales[name] <= 1.0]
        if len(fitting) == len(sparse):
            densities.update({name: share * scales[name] for name in sparse})
            break
        full += sum(sizes[name] for name in sparse if name not in fitting)
        sparse = fitting
    return {name: 1.0 - density for name, density in densities.items()}


def counts(shapes: Shapes, sparsities: Mapping[str, float]) -> dict[str, int]:
    """Number of active weights of every layer: (1 - sparsity) * n rounded half up, at least 1: no layer dies."""
    if set(shapes) != set(sparsities):
        odd = sorted(set(shapes) ^ set(sparsities))
        raise ValueError(f"shapes and sparsities must name the same layers; only one of them has {', '.join(odd)}")
    active = {}
    for name, size in _checked(shapes, 0.0, ()).items():
        if not 0.0 <= sparsities[name] <= 1.0:
            raise ValueError(f"layer {name!r} has sparsity {sparsities[name]}; it must lie in [0, 1]")
        # .9 is not a binary fraction: without the inner rounding 10 % of 25 would be 2.4999... and lose its half.
        exact = round(size - sparsities[name] * size, 6)
        active[name] = max(1, math.floor(exact + 0.5))
    return active


DISTRIBUTIONS = ("uniform", "er", "erk")


def distribute(name: str, shapes: Shapes, sparsity: float, dense: Collection[str] = ()) -> dict[str, float]:
    """The distribution of that name: {layer: shape} to {layer: sparsity}."""
    if name not in DISTRIBUTIONS:
        allowed = ", ".join(DISTRIBUTIONS)
        raise ValueError(f"unknown distribution {name!r}; allowed: {allowed}{did_you_mean(name, DISTRIBUTIONS)}")
    return {"uniform": uniform, "er": er, "erk": erk}[name](shapes, sparsity, dense)
