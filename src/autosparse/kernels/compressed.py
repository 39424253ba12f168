"""Compressed weights: made from a dense one, given new values, transposed when first needed, and kept while it lives."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from autosparse.kernels.library import kernels
from autosparse.kernels.plans import Plan

# A form whose weight is gone is dropped once this many times as many others as there are now have come after it.
LENDING_ROUNDS = 2
ENTRY_WORDS = 2  # an offset and a value


class Compressed:
    """The non-zeros of a weight, or the pattern of a mask, by output channel and if wanted by input channel."""

    def __init__(self, plan: Plan, dense: Tensor, threads: int) -> None:
        table = kernels().table
        self.plan = plan
        count, compress = (
            (table.count_mask, table.compress_mask)
            if dense.dtype is torch.bool
            else (table.count_weight, table.compress_weight)
        )
        self.row_start = torch.empty(plan.compressed_rows + 1, dtype=torch.int32)
        found = count(byref(plan.layout), dense.data_ptr(), threads, self.row_start.data_ptr())
        if found < 0:
            raise ValueError("the weight has more non-zeros than the sparse kernels can count (2**31 - 1); compute it densely")
        self.nonzeros = int(found)
        self.entries = torch.empty(self.nonzeros, ENTRY_WORDS, dtype=torch.int32)
        self.columns = torch.empty(self.nonzeros, dtype=torch.int32)
        compress(
            byref(plan.layout),
            dense.data_ptr(),
            plan.column_offsets.data_ptr(),
            threads,
            self.row_start.data_ptr(),
            self.entries.data_ptr(),
            self.columns.data_ptr(),
        )
        self._transposed: tuple[Tensor, Tensor, Tensor] | None = None
        self._transposed_is_fresh = False

    def refresh(self, dense: Tensor, threads: int) -> bool:
        """Take the values of another weight with the same pattern; False, and unusable, if the pattern differs."""
        same = kernels().table.refresh(
            byref(self.plan.layout),
            dense.data_ptr(),
            threads,
            self.row_start.data_ptr(),
            self.columns.data_ptr(),
            self.entries.data_ptr(),
        )
        self._transposed_is_fresh = False
        return bool(same)

    def drop_transposed(self) -> None:
        """Forget the form by input channel: it is made anew when next needed."""
        self._transposed = None

    def transposed(self, threads: int) -> tuple[Tensor, Tensor]:
        """Row starts and entries by input channel, for all phases of the input gradient."""
        table, target = kernels().table, self.plan.transposed_layout
        if self._transposed is None:
            start = torch.empty(target.compressed_rows + 1, dtype=torch.int32)
            entries, source = torch.empty_like(self.entries), torch.empty_like(self.columns)
            counts = torch.empty(threads * target.compressed_rows, dtype=torch.int32)
            table.transpose(
                byref(self.plan.layout),
                byref(target),
                self.plan.transposed_columns.data_ptr(),
                self.row_start.data_ptr(),
                self.columns.data_ptr(),
                self.entries.data_ptr(),
                threads,
                counts.data_ptr(),
                start.data_ptr(),
                entries.data_ptr(),
                source.data_ptr(),
            )
            self._transposed = start, entries, source
        elif not self._transposed_is_fresh:
            _, entries, source = self._transposed
            table.refresh_transposed(self.nonzeros, self.entries.data_ptr(), source.data_ptr(), threads, entries.data_ptr())
        self._transposed_is_fresh = True
        return self._transposed[0], self._transposed[1]


@dataclass
class _Kept:
    storage: Any
    version: int
    number: int  # how many were kept before it
    compressed: Compressed


class CompressedWeights:
    """Compressed forms of the weights that are alive, found again by storage and version.

    A form whose weight is gone, or has a newer version, lends its pattern to the next weight with the same plan.
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
            if kept and not kept.storage.expired() and kept.version == dense._version:
                return kept.compressed
            old = self._release(key, plan)
        usable = old is not None and dense.dtype is not torch.bool and old.refresh(dense, threads)
        compressed = old if old is not None and usable else Compressed(plan, dense, threads)
        with self._lock:
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._kept[key] = _Kept(reference, dense._version, self._count, compressed)
            self._count += 1
        return compressed

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)

    def _release(self, key: Hashable, plan: Plan) -> Compressed | None:
        """Drop what is outdated; of that, the oldest form with this plan: layers of one shape follow each other in order."""
        same = self._kept.pop(key, None)
        gone = [each for each, kept in self._kept.items() if kept.storage.expired()]
        if same is None or same.storage.expired():
            lent = next((each for each in gone if self._kept[each].compressed.plan is plan), None)
            same = self._kept.pop(lent) if lent is not None else None
        oldest = self._count - LENDING_ROUNDS * (len(self._kept) + 1)
        for each in gone:
            if each in self._kept and self._kept[each].number < oldest:
                del self._kept[each]
        return same.compressed if same is not None else None


WEIGHTS = CompressedWeights()
