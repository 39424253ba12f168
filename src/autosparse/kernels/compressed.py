"""Compressed weights: compressed from a dense one, refreshed with new values, transposed when first needed; see README.md."""

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

from autosparse.kernels.layout import Layout
from autosparse.kernels.library import kernels
from autosparse.kernels.memory import TRANSPOSED, TRANSPOSED_COUNTS, TRANSPOSED_STARTS, Words, scratch

# An orphaned form is dropped once this many times as many others as there are now have come after it.
LENDING_ROUNDS = 2
ENTRY_WORDS = 2  # an offset and a value
SPARE = 64  # 1/64 of the memory is left free for weights that come back


class Compressed:
    """The non-zeros of a weight, or the pattern of a mask, by output channel and, when first needed, by input channel."""

    def __init__(self, layout: Layout, dense: Tensor, threads: int) -> None:
        self.layout = layout
        self.row_start = Words(layout.compressed_rows + 1)
        self.entries = Words(0)  # with room for some more than there are
        self.key: Hashable = None  # in CompressedWeights
        self.users: WeakSet[object] = WeakSet()  # calls that still need these values, with or without the dense weight
        self.fill(dense, threads)

    def fill(self, dense: Tensor, threads: int) -> None:
        """Take another weight or mask, with a pattern of its own, into the same memory if that is large enough."""
        table = kernels().table
        count, compress = (
            (table.count_mask, table.compress_mask)
            if dense.dtype is torch.bool
            else (table.count_weight, table.compress_weight)
        )
        nonzeros = count(byref(self.layout.weight), dense.data_ptr(), threads, self.row_start.data_ptr())
        if nonzeros < 0:
            raise ValueError("the weight has more non-zeros than the sparse kernels can count (2**31 - 1); compute it densely")
        self.nonzeros = int(nonzeros)
        room = self.entries.count // ENTRY_WORDS
        if not self.nonzeros <= room <= 2 * self.nonzeros:
            self.entries = Words(ENTRY_WORDS * (self.nonzeros + self.nonzeros // SPARE))
        compress(
            byref(self.layout.weight),
            dense.data_ptr(),
            self.layout.column_offsets.data_ptr(),
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
            byref(self.layout.weight),
            self.layout.slots.data_ptr(),
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
        rows, words = self.layout.transposed.compressed_rows + 1, ENTRY_WORDS * self.nonzeros
        arrays = self._transposed
        if arrays is None and self._lasts:
            arrays = Words(rows), Words(words), Words(self.nonzeros)
            self._transpose(threads, *arrays)
        elif arrays is None:
            arrays = scratch(TRANSPOSED_STARTS, rows), scratch(TRANSPOSED, words), None
            self._transpose(threads, *arrays)
        elif not self._transposed_is_fresh:
            _, entries, source = arrays
            assert source is not None
            kernels().table.refresh_transposed(
                self.nonzeros, self.entries.data_ptr(), source.data_ptr(), threads, entries.data_ptr()
            )
        self._transposed, self._transposed_is_fresh = (arrays, True) if self._lasts else (None, False)
        return arrays[0], arrays[1]

    def _transpose(self, threads: int, start: Words, entries: Words, source: Words | None) -> None:
        target = self.layout.transposed
        kernels().table.transpose(
            byref(self.layout.weight),
            byref(target),
            self.layout.slots.data_ptr(),
            self.row_start.data_ptr(),
            self.entries.data_ptr(),
            threads,
            scratch(TRANSPOSED_COUNTS, threads * target.compressed_rows).data_ptr(),
            start.data_ptr(),
            entries.data_ptr(),
            None if source is None else source.data_ptr(),
        )


@dataclass
class _Form:
    storage: Any  # a weak reference; None: the dense weight was dropped
    version: int
    number: int  # how many came before it
    compressed: Compressed

    def is_orphaned(self) -> bool:
        return self.storage is None or bool(self.storage.expired())


class CompressedWeights:
    """Compressed forms of the weights that are alive, found again by storage and version.

    A form whose weight is gone, or has a newer version, and which nobody uses, lends its pattern to the next weight with
    the same layout.
    """

    def __init__(self) -> None:
        self._forms: OrderedDict[Hashable, _Form] = OrderedDict()
        self._lock = threading.Lock()
        self._count = 0

    def find(self, layout: Layout, dense: Tensor) -> Compressed:
        """The compressed form of a dense weight or mask, which must have the memory order of the layout."""
        threads = torch.get_num_threads()
        if dense.is_inference():  # has no version: nothing tells whether it has changed
            return Compressed(layout, dense, threads)
        storage = dense.untyped_storage()
        key = (storage._cdata, dense.storage_offset(), layout)
        with self._lock:
            form = self._forms.get(key)
            if form and not form.is_orphaned() and form.version == dense._version:
                return form.compressed
            lent = self._borrow(key, layout)
        compressed = Compressed(layout, dense, threads) if lent is None else lent
        if lent is not None and not (dense.dtype is not torch.bool and lent.refresh(dense, threads)):
            lent.fill(dense, threads)
        with self._lock:
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._forms[key] = _Form(reference, dense._version, self._count, compressed)
            compressed.key = key
            self._count += 1
        return compressed

    def drop_dense_weight(self, compressed: Compressed) -> None:
        """The weight will rarely be needed again: not even a weak reference stays, which would keep its storage header.

        If it is needed after all, it borrows the form and refreshes it.
        """
        with self._lock:
            form = self._forms.get(compressed.key)
            if form is not None and form.compressed is compressed:
                form.storage = None

    def clear(self) -> None:
        with self._lock:
            self._forms.clear()

    def __len__(self) -> int:
        return len(self._forms)

    def _borrow(self, key: Hashable, layout: Layout) -> Compressed | None:
        """The outdated form of this weight, or the oldest orphan with its layout: layers of one shape come in a fixed order.

        Orphans that nobody borrowed for a while are dropped.
        """
        form = self._forms.pop(key, None)
        if form is not None and (form.compressed.users or form.is_orphaned()):  # same address, different weight
            form.compressed.key = object()
            self._forms[form.compressed.key] = form
            form = None
        orphans = {key: form for key, form in self._forms.items() if form.is_orphaned() and not form.compressed.users}
        if form is None:
            fitting = (key for key, orphan in orphans.items() if orphan.compressed.layout is layout)
            oldest = min(fitting, key=lambda key: orphans[key].number, default=None)
            form = None if oldest is None else self._forms.pop(oldest)
        least = self._count - LENDING_ROUNDS * (len(self._forms) + 1)
        for orphan_key, orphan in orphans.items():
            if orphan.number < least:
                self._forms.pop(orphan_key, None)
        return None if form is None else form.compressed


WEIGHTS = CompressedWeights()
