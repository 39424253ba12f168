"""How tensors lie in memory, whether kernels may read it, and the memory that the kernels themselves keep."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.utils.weak import WeakIdKeyDictionary

WORD_BYTES = 4
# Uses. Passes of one layer that follow each other share what they can.
TILES, CHANNEL_SUMS, WEIGHT_SUMS = "tiles", "channel_sums", "weight_sums"
TRANSPOSED, TRANSPOSED_STARTS, TRANSPOSED_COUNTS = "transposed", "transposed_starts", "transposed_counts"
DOUBLE_WORDS = 2

LEAST_KEPT = 2**18  # weights: the allocator keeps the memory of fewer by itself
_UNUSED = 2  # references to pages that no tensor uses: one variable, and that of getrefcount

_local = threading.local()
_effective_pages: MutableMapping[Tensor, Any] = WeakIdKeyDictionary()  # by stored weight
_PLAIN = frozenset({Tensor, nn.Parameter, type(None)})


def weight_format(weight: Tensor) -> torch.memory_format:
    """The memory order in which a weight is read and its gradient is returned."""
    last = weight.dim() == 4 and not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def pixels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def is_images_last(tensor: Tensor) -> bool:
    """Whether it lies in memory as [row][channel][column][image]: the other order of tensors that kernels take."""
    images, channels, _, cols = tensor.shape
    return images > 1 and tensor.stride() == (1, cols * images, channels * cols * images, images)


def in_kernel_order(tensor: Tensor) -> Tensor:
    """Images last if it is so, else channels last."""
    return tensor if is_images_last(tensor) else pixels_last(tensor)


def empty_pixels(x: Tensor, shape: Sequence[int], images_last: bool = False) -> Tensor:
    """Memory for a tensor of this shape, else as x."""
    if not images_last:
        return torch.empty(tuple(shape), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    images, channels, rows, cols = shape
    stride = (1, cols * images, channels * cols * images, images)
    return torch.empty_strided((images, channels, rows, cols), stride, dtype=x.dtype, device=x.device)


def is_filled(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in whatever order."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def same_order(first: Tensor, second: Tensor) -> bool:
    """Whether both have their elements in the same order; the stride of a dimension of one element does not matter."""
    if first.stride() == second.stride():
        return True
    strides = zip(first.shape, first.stride(), second.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in strides)


def is_eager_memory(*tensors: Tensor | None) -> bool:
    """Whether kernels may read these tensors now: they are plain tensors that nothing traces or records."""
    return is_eager() and is_plain(*tensors)


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether none of them is of a class of its own, such as a sharded tensor."""
    return _PLAIN.issuperset(map(type, tensors))


def is_eager() -> bool:
    """Whether nothing traces or records what is computed now."""
    return not (
        is_dynamo_compiling()
        or torch.compiler._is_compiling_flag  # torch.compiler.is_compiling() without its calls
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
    )


# ---- memory of the kernels -------------------------------------------------------------------------------------------


def _new_pages(size: int) -> Any:
    options = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    return mmap.mmap(-1, size, **options)


class Words:
    """An array of int32 or float32 in pages of its own, for what is kept from step to step.

    From malloc it would lie between activations and gradients that come and go, and keep their memory from being joined
    again: the process of a Transformer grew by a tenth. It is no tensor either, whose small parts come from malloc.
    """

    __slots__ = ("_address", "_first", "_pages", "count")

    def __init__(self, count: int) -> None:
        self._pages, self._first, self.count = _new_pages(max(1, count) * WORD_BYTES), 0, count
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))

    def part(self, first: int, count: int) -> Words:
        """Some of them, in the same memory."""
        words = Words.__new__(Words)
        words._pages, words._first, words.count = self._pages, self._first + first, count
        words._address = self._address + first * WORD_BYTES
        return words

    def data_ptr(self) -> int:
        """As a tensor's: valid as long as this object."""
        return self._address

    def tensor(self, dtype: torch.dtype = torch.int32) -> Tensor:
        """The same memory as a tensor."""
        if not self.count:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._pages, dtype=dtype, count=self.count, offset=self._first * WORD_BYTES)


def scratch(use: str, words: int) -> Words:
    """At least `words` words of 32 bits, which belong to the calling thread until it asks again for the same use.

    They are kept from call to call: new memory would cost a page fault for every few kilobytes, and as its size follows
    the number of non-zeros, the holes that it left between gradients would fit nothing else.
    """
    memory: Words | None = getattr(_local, use, None)
    if memory is None or memory.count < words:
        setattr(_local, use, None)  # free the old memory before the new is taken
        memory = Words(words)
        setattr(_local, use, memory)
    return memory


def kept_like(weight: Tensor) -> Tensor:
    """An empty tensor like a large weight in the memory of the last one, unless somebody still holds that.

    New pages for all effective weights at every step would cost more than the thresholds.
    """
    # taken out meanwhile, so that two threads never get the same pages
    pages = _effective_pages.pop(weight, None)
    if getattr(_local, "is_brief", False):
        return torch.empty_like(weight)
    if pages is None or len(pages) != weight.nbytes or sys.getrefcount(pages) > _UNUSED:
        pages = _new_pages(weight.nbytes)
    flat = torch.frombuffer(pages, dtype=weight.dtype)  # refers to the pages as long as its memory is used
    _effective_pages[weight] = pages
    return flat.as_strided(weight.shape, torch.empty_like(weight, device="meta").stride())


def read_briefly(module: nn.Module) -> Tensor:
    """A module's weight for kernels that drop it before the backward pass: its memory is given back."""
    _local.is_brief = True
    try:
        weight: Tensor = module.weight  # type: ignore[assignment]
    finally:
        _local.is_brief = False
    return weight


def kept_bytes() -> int:
    """The memory of effective weights that are kept now, which torch's records of its allocations do not show."""
    return sum(len(pages) for pages in _effective_pages.values())


def release() -> None:
    """Free the scratch memory of the calling thread: after a pass much larger than those to come."""
    vars(_local).clear()
