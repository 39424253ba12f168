"""One call of a model: what `deploy` is given as an example, and what parts of a model receive."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

SIMPLE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True)
class Example:
    """Positional and keyword arguments."""

    args: tuple[Any, ...]
    named: dict[str, Any]

    @classmethod
    def of(cls, given: Any) -> Example:
        """A tuple or list holds positional arguments, a mapping (BatchEncoding too) keyword arguments, anything else is one."""
        if isinstance(given, Example):
            return given
        if isinstance(given, Mapping):
            if not all(isinstance(name, str) for name in given):
                raise TypeError(
                    f"the keys of example_input must be names of arguments, got {list(given)[:5]}; "
                    "for a model that takes one dict, give a tuple that holds it"
                )
            return cls((), dict(given))
        # a namedtuple is one value, such as a PackedSequence
        return cls(tuple(given) if type(given) in (tuple, list) else (given,), {})

    def run(self, model: nn.Module) -> Any:
        """What the model gives; it works on copies, so that the example stays as it is."""
        again = self.fresh()
        return model(*again.args, **again.named)

    def fresh(self) -> Example:
        """The same values in memory of their own: models may write to their inputs, and extend caches."""
        args, named = pytree.tree_map(_fresh, (self.args, self.named))
        return Example(args, named)

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, however deep."""
        return (leaf for leaf in pytree.tree_leaves((self.args, self.named)) if isinstance(leaf, Tensor))


def _fresh(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value if isinstance(value, SIMPLE) else copy.deepcopy(value)
