"""An example without its numbers, as JSON: what a call looks like, so that one like it can be made again."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autosparse.serving.example import Example

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
LARGEST = 2**26  # elements of all tensors together
MOST_SIDES = 32
DEEPEST = 16
PLAIN = (type(None), bool, int, float, str)


def describe(example: Example) -> dict[str, Any]:
    """The example's structure, shapes and dtypes, and its plain values."""
    return {"args": [_describe(value) for value in example.args], "named": {k: _describe(v) for k, v in example.named.items()}}


def _describe(value: Any) -> dict[str, Any]:
    if isinstance(value, Tensor) and str(value.dtype).removeprefix("torch.") in DTYPES:
        return {"tensor": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if type(value) in PLAIN and (type(value) is not float or math.isfinite(value)):
        return {"value": value}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_describe(item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _describe(item) for key, item in value.items()}}
    return {"unknown": type(value).__name__}


def rebuild(spec: Any) -> Example:
    """An example of this structure: random numbers, ones for integers (a word, or a mask that shows all), true."""
    if not isinstance(spec, dict) or spec.keys() != {"args", "named"}:
        raise ValueError("its example has no arguments")
    builder = _Builder()
    return Example(builder.build({"tuple": spec["args"]}), builder.build({"dict": spec["named"]}))


class _Builder:
    """Makes values of their descriptions, in bounded memory."""

    def __init__(self) -> None:
        self.elements_left = LARGEST
        self.random = torch.Generator().manual_seed(0)

    def build(self, spec: Any, depth: int = 0) -> Any:
        if isinstance(spec, dict) and spec.keys() == {"tensor", "dtype"}:
            return self._tensor(spec["tensor"], spec["dtype"])
        if not isinstance(spec, dict) or len(spec) != 1 or depth > DEEPEST:
            raise ValueError("its example is not a description of arguments")
        ((kind, content),) = spec.items()
        if kind == "value" and type(content) in PLAIN:
            return content
        if kind in ("list", "tuple") and isinstance(content, list):
            items = [self.build(item, depth + 1) for item in content]
            return items if kind == "list" else tuple(items)
        if kind == "dict" and isinstance(content, dict):
            return {key: self.build(item, depth + 1) for key, item in content.items()}
        if kind == "unknown":
            raise ValueError(f"its example held a {str(content)[:80]}, which is not saved: give example_input")
        raise ValueError("its example is not a description of arguments")

    def _tensor(self, shape: Any, dtype: Any) -> Tensor:
        valid = isinstance(shape, list) and len(shape) <= MOST_SIDES and all(type(side) is int and side >= 0 for side in shape)
        if not valid or not isinstance(dtype, str) or dtype not in DTYPES:
            raise ValueError("its example has a tensor of no known shape and dtype")
        self.elements_left -= math.prod(max(side, 1) for side in shape)
        if self.elements_left < 0:
            raise ValueError("its example is too large to be made again: give example_input")
        kind = DTYPES[dtype]
        if kind.is_floating_point or kind.is_complex:
            wide = torch.complex64 if kind.is_complex else torch.float32
            return torch.randn(shape, dtype=wide, generator=self.random).to(kind)
        return torch.ones(shape, dtype=kind)
