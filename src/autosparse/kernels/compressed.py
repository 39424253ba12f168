"""Compressed weights: made from a dense one, given new values, transposed when first needed, and kept while it lives."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from ctypes import byref
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from autosparse.kernels.library import kernels
from autosparse.kernels.pages import Words
from autosparse.kernels.plans import Plan
from autosparse.kernels.scratch import TRANSPOSED, TRANSPOSED_COUNTS, TRANSPOSED_STARTS, scratch

# A form whose weight is gone is dropped once this many times as many others as there are now have come after it.
LENDING_ROUNDS = 2
ENTRY_WORDS = 2  # an offset and a value
SPARE = 64  # one part of so many is left free for weights that come back


class Compressed:
    """The non-zeros of a weight, or the pattern of a mask, by output channel and if wanted by input channel."""

    def __init__(self, plan: Plan, dense: Tensor, threads: int) -> None:
        self.plan = plan
        self.row_start = Words(plan.compressed_rows + 1)
        self.entries = Words(0)  # with room for some more than there are
        self.key: Hashable = None  # where it is kept
        self.users: WeakSet[object] = WeakSet()  # who needs these values still, whether or not the dense weight is there
        self.fill(dense, threads)

    def fill(self, dense: Tensor, threads: int) -> None:
        """Take another weight or mask, with a pattern of its own, into the same memory if that is large enough."""
        table = kernels().table
        count, compress = (
            (table.count_mask, table.compress_mask)
            if dense.dtype is torch.bool
            else (table.count_weight, table.compress_weight)
        )
        found = count(byref(self.plan.layout), dense.data_ptr(), threads, self.row_start.data_ptr())
        if found < 0:
            raise ValueError("the weight has more non-zeros than the sparse kernels can count (2**31 - 1); compute it densely")
        self.nonzeros = int(found)
        room = self.entries.count // ENTRY_WORDS
        if not self.nonzeros <= room <= 2 * self.nonzeros:
            self.entries = Words(ENTRY_WORDS * (self.nonzeros + self.nonzeros // SPARE))
        compress(
            byref(self.plan.layout),
            dense.data_ptr(),
            self.plan.column_offsets.data_ptr(),
            threads,
            self.row_start.data_ptr(),
            self.entries.data_ptr(),
        )
        self._transposed: tuple[Words, Words, Words | None] | None = None
        self._transposed_is_fresh = False
        self._lasts = False

    def refresh(self, dense: Tensor, threads: int) -> bool:
        """Take the values of another weight with the same pattern; False, and unusable, if the pattern differs."""
        same = kernels().table.refresh(
            byref(self.plan.layout),
            self.plan.slots.data_ptr(),
            dense.data_ptr(),
            threads,
            self.row_start.data_ptr(),
            self.entries.data_ptr(),
        )
        self._transposed_is_fresh = False
        self._lasts = bool(same)
        return self._lasts

    def transposed(self, threads: int) -> tuple[Words, Words]:
        """Row starts and entries by input channel, for the input gradient.

        Kept only for a pattern that has lasted from one weight to the next: one that changes at every step would hold the
        memory for nothing, and has its transposed form in scratch memory, until this thread asks for the next.
        """
        rows, words = self.plan.transposed_layout.compressed_rows + 1, ENTRY_WORDS * self.nonzeros
        found = self._transposed
        if found is None and self._lasts:
            found = Words(rows), Words(words), Words(self.nonzeros)
            self._transpose(threads, *found)
        elif found is None:
            found = scratch(TRANSPOSED_STARTS, rows), scratch(TRANSPOSED, words), None
            self._transpose(threads, *found)
        elif not self._transposed_is_fresh:
            _, entries, source = found
            assert source is not None
            kernels().table.refresh_transposed(
                self.nonzeros, self.entries.data_ptr(), source.data_ptr(), threads, entries.data_ptr()
            )
        self._transposed, self._transposed_is_fresh = (found, True) if self._lasts else (None, False)
        return found[0], found[1]

    def _transpose(self, threads: int, start: Words, entries: Words, source: Words | None) -> None:
        target = self.plan.transposed_layout
        kernels().table.transpose(
            byref(self.plan.layout),
            byref(target),
            self.plan.slots.data_ptr(),
            self.row_start.data_ptr(),
            self.entries.data_ptr(),
            threads,
            scratch(TRANSPOSED_COUNTS, threads * target.compressed_rows).data_ptr(),
            start.data_ptr(),
            entries.data_ptr(),
            None if source is None else source.data_ptr(),
        )


@dataclass
class _Kept:
    storage: Any  # a weak reference; None: the weight was let go
    version: int
    number: int  # how many were kept before it
    compressed: Compressed

    def is_gone(self) -> bool:
        return self.storage is None or bool(self.storage.expired())


class CompressedWeights:
    """Compressed forms of the weights that are alive, found again by storage and version.

    A form whose weight is gone, or has a newer version, and which nobody uses, lends its pattern to the next weight with
    the same plan.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._lock = threading.Lock()
        self._count = 0

    def find(self, plan: Plan, dense: Tensor) -> Compressed:
        """The compressed form of a dense weight or mask, which must have the memory order of the plan."""
        threads = torch.get_num_threads()
        if dense.is_inference():  # has no version: nothing tells whether it has changed
            return Compressed(plan, dense, threads)
        storage = dense.untyped_storage()
        key = (storage._cdata, dense.storage_offset(), plan)
        with self._lock:
            kept = self._kept.get(key)
            if kept and not kept.is_gone() and kept.version == dense._version:
                return kept.compressed
            old = self._release(key, plan)
        compressed = Compressed(plan, dense, threads) if old is None else old
        if old is not None and not (dense.dtype is not torch.bool and old.refresh(dense, threads)):
            old.fill(dense, threads)
        with self._lock:
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._kept[key] = _Kept(reference, dense._version, self._count, compressed)
            compressed.key = key
            self._count += 1
        return compressed

    def let_go(self, compressed: Compressed) -> None:
        """A form's weight is hardly asked for again: not even a weak reference stays, which would hold a part of it.

        If it is, the form is lent to it, and refreshed.
        """
        with self._lock:
            kept = self._kept.get(compressed.key)
            if kept is not None and kept.compressed is compressed:
                kept.storage = None

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)

    def _release(self, key: Hashable, plan: Plan) -> Compressed | None:
        """Drop what is outdated; of that, the oldest form with this plan: layers of one shape follow each other in order."""
        same = self._kept.pop(key, None)
        if same is not None and (same.compressed.users or same.is_gone()):  # it is this weight's only by its place
            same.compressed.key = object()
            self._kept[same.compressed.key] = same
            same = None
        gone = [each for each, kept in self._kept.items() if kept.is_gone() and not kept.compressed.users]
        if same is None:
            fitting = (each for each in gone if self._kept[each].compressed.plan is plan)
            lent = min(fitting, key=lambda each: self._kept[each].number, default=None)
            same = self._kept.pop(lent) if lent is not None else None
        oldest = self._count - LENDING_ROUNDS * (len(self._kept) + 1)
        for each in gone:
            if each in self._kept and self._kept[each].number < oldest:
                del self._kept[each]
        return same.compressed if same is not None else None


WEIGHTS = CompressedWeights()
