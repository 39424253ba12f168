"""Multiply-accumulates of torch's products, from the shapes of one call."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


class Product(NamedTuple):
    """One product: data (None: it comes from parameters) with a weight, or with weight None of activations alone."""

    kind: str
    macs: int
    data: Tensor | None
    weight: Tensor | None
    either: bool = False  # the weight may be on either side


class Call:
    """The arguments of one torch function by position or by name, and its result."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        self.args, self.kwargs, self.result = args, kwargs, result

    def get(self, position: int, *names: str) -> Any:
        if position < len(self.args):
            return self.args[position]
        return next(self.kwargs[name] for name in names if name in self.kwargs)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(item)


def samples_in(value: Any) -> int:
    """The batch size: dim 0 of the first tensor; the number of sequences of a packed input."""
    if isinstance(value, PackedSequence):
        return int(value.batch_sizes[0])
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            if isinstance(item, PackedSequence) or any(True for _ in tensors_in(item)):
                return samples_in(item)
    return value.shape[0] if isinstance(value, Tensor) and value.dim() else 1


def products(function: str, call: Call) -> list[Product]:
    """The products of one call of a torch function, by its name; none for functions that multiply nothing."""
    counter = _COUNTERS.get(function)
    return counter(function, call) if counter else []


def _linear(kind: str, call: Call) -> list[Product]:
    data, weight = call.get(0, "input"), call.get(1, "weight")
    return [Product(kind, call.result.numel() * weight.shape[-1], data, weight)]


def _conv(kind: str, call: Call) -> list[Product]:
    """Every output position sees kernel x in/groups weights; of a transposed one every input meets kernel x out/groups."""
    data, weight = call.get(0, "input"), call.get(1, "weight")
    positions = data if kind.startswith("conv_transpose") else call.result
    return [Product(kind, positions.numel() * weight.shape[1:].numel(), data, weight)]


def _bilinear(kind: str, call: Call) -> list[Product]:
    data, weight = call.get(0, "input1"), call.get(2, "weight")
    return [Product(kind, data.shape[:-1].numel() * weight.numel(), data, weight)]


def _matmul(function: str, call: Call) -> list[Product]:
    left, right = call.get(0, "input", "self"), call.get(1, "other", "mat2", "vec", "vec2", "tensor")
    if function == "__rmatmul__":
        left, right = right, left
    return [Product("matmul", call.result.numel() * left.shape[-1], left, right, either=True)]


def _add_matmul(_: str, call: Call) -> list[Product]:
    left, right = call.get(1, "mat1", "mat", "batch1"), call.get(2, "mat2", "vec", "batch2")
    columns = 1 if right.dim() == 1 else right.shape[-1]
    return [Product("matmul", left.numel() * columns, left, right, either=True)]


def _tensordot(_: str, call: Call) -> list[Product]:
    left, right = call.get(0, "a"), call.get(1, "b")
    free = call.result.numel()
    # left x right = free x contracted^2 elements
    contracted = math.isqrt(left.numel() * right.numel() // free) if free else 0
    return [Product("matmul", free * contracted, left, right, either=True)]


def _einsum(_: str, call: Call) -> list[Product]:
    """Contracted from left to right; a product that sums over no index multiplies elementwise and is not counted."""
    equation, operands = call.args[0].replace(" ", ""), list(tensors_in(call.args[1:]))
    inputs, arrow, output = equation.partition("->")
    sizes: dict[str, int] = {}
    terms = []
    for term, operand in zip(inputs.split(","), operands, strict=True):
        named = term.replace("...", "")
        hidden = [f"...{back}" for back in range(operand.dim() - len(named), 0, -1)]
        before, _, after = term.partition("...")
        indices = [*before, *hidden, *after]
        terms.append(set(indices))
        for index, size in zip(indices, operand.shape, strict=True):
            sizes[index] = max(sizes.get(index, 1), size)
    if arrow:
        remaining = set(output.replace("...", "")) | {index for index in sizes if index.startswith("...")}
    else:
        remaining = {index for index in sizes if index.startswith("...") or inputs.count(index) == 1}
    contractions, current = [], terms[0]
    for position in range(1, len(terms)):
        meeting = current | terms[position]
        current = meeting & remaining.union(*terms[position + 1 :])
        if current != meeting:
            macs = math.prod(sizes[index] for index in meeting)
            earlier = operands[0] if position == 1 else None
            contractions.append(Product("matmul", macs, earlier, operands[position], either=position == 1))
    return contractions


def _attention(_: str, call: Call) -> list[Product]:
    query, key, value = call.get(0, "query"), call.get(1, "key"), call.get(2, "value")
    macs = query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    return [Product("attention", macs, query, None)]


_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


def _multi_head(_: str, call: Call) -> list[Product]:
    """The input projections, the output projection, and the two products of attention."""
    bound = _MULTI_HEAD.bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    named = bound.arguments
    query, key, value = named["query"], named["key"], named["value"]
    width = query.shape[-1]
    rows = [data.numel() // data.shape[-1] for data in (query, key, value)]
    if named["use_separate_proj_weight"]:
        weights = [named["q_proj_weight"], named["k_proj_weight"], named["v_proj_weight"]]
    else:
        weights = [named["in_proj_weight"]] * 3
    projections = [
        Product("linear", count * width * data.shape[-1], data, weight)
        for count, data, weight in zip(rows, (query, key, value), weights, strict=True)
    ]
    sources = key.shape[0] + (named["bias_k"] is not None) + bool(named["add_zero_attn"])
    attention = Product("attention", 2 * rows[0] * sources * width, query, None)
    output = Product("linear", rows[0] * width * width, call.result[0], named["out_proj_weight"])
    return [*projections, attention, output]


_Counter = Callable[[str, Call], list[Product]]
_COUNTERS: dict[str, _Counter] = {
    "linear": _linear,
    "bilinear": _bilinear,
    **{f"conv{transposed}{dims}d": _conv for transposed in ("", "_transpose") for dims in (1, 2, 3)},
    **dict.fromkeys(("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "inner"), _matmul),
    **dict.fromkeys(("addmm", "addmv", "addbmm", "baddbmm"), _add_matmul),
    "tensordot": _tensordot,
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head,
}
