"""Memory in pages of its own, for what is kept from step to step.

From malloc it would lie between activations and gradients that come and go, and keep their memory from being joined again:
a Transformer's process grew by a tenth. For the same reason it is no tensor, whose small parts come from malloc.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import torch
from torch import Tensor

WORD_BYTES = 4


def _new_pages(size: int) -> Any:
    own = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    return mmap.mmap(-1, size, **own)


class Words:
    """A number of int32, or of float32."""

    __slots__ = ("_first", "_pages", "count")

    def __init__(self, count: int) -> None:
        self._pages, self._first, self.count = _new_pages(max(1, count) * WORD_BYTES), 0, count

    def part(self, first: int, count: int) -> Words:
        """Some of them, in the same memory."""
        found = Words.__new__(Words)
        found._pages, found._first, found.count = self._pages, self._first + first, count
        return found

    def data_ptr(self) -> int:
        """As a tensor's: valid as long as this object."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._pages)) + self._first * WORD_BYTES

    def tensor(self, dtype: torch.dtype = torch.int32) -> Tensor:
        """The same memory as a tensor."""
        if not self.count:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._pages, dtype=dtype, count=self.count, offset=self._first * WORD_BYTES)
