"""The channels of one tensor: which dimensions hold them, a number for each, and its value where that is constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Channels:
    """`ids` and `values` have one axis for each of `dims`, ascending; a value that is not the same everywhere is NaN."""

    dims: tuple[int, ...]
    ids: Ids
    values: Values

    def with_values(self, values: Values) -> Channels:
        return Channels(self.dims, self.ids, values)

    def varying(self) -> Channels:
        """The same channels, with no constant known."""
        return self.with_values(np.full(self.ids.shape, np.nan))

    def moved(self, dims: Sequence[int]) -> Channels:
        """With its dimensions at other places."""
        order = np.argsort(dims)
        return Channels(tuple(int(dims[place]) for place in order), self.ids.transpose(order), self.values.transpose(order))

    def spread(self, dims: Sequence[int], shape: Sequence[int]) -> tuple[Ids, Values]:
        """Over further dimensions; `shape` is the tensor's."""
        index = tuple(slice(None) if dim in self.dims else None for dim in dims)
        sizes = [shape[dim] for dim in dims]
        return np.broadcast_to(self.ids[index], sizes), np.broadcast_to(self.values[index], sizes)


def tidy(dims: Sequence[int], ids: Ids, values: Values) -> Channels | None:
    """Without the dimensions along which nothing changes; None if no other is left."""
    kept = [axis for axis in range(ids.ndim) if bool((ids != ids.take([0], axis)).any())]
    index = tuple(slice(None) if axis in kept else 0 for axis in range(ids.ndim))
    return Channels(tuple(dims[axis] for axis in kept), ids[index], values[index]) if kept else None


def reshaped(channels: Channels, before: Sequence[int], after: Sequence[int]) -> Channels | None:
    """After a view of another shape; None where the channels cannot be told any more."""
    dims_in: list[int] = []
    dims_out: list[int] = []
    for block_in, block_out in _blocks(before, after):
        if set(block_in) & set(channels.dims):
            dims_in += block_in
            dims_out += block_out
    ids, values = channels.spread(dims_in, before)
    sizes = [after[dim] for dim in dims_out]
    return tidy(dims_out, ids.reshape(sizes), values.reshape(sizes))


def _blocks(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Neighbouring dimensions whose sizes have the same product on both sides."""
    blocks: list[tuple[list[int], list[int]]] = []
    left = right = 0
    while left < len(before) or right < len(after):
        dims_in, dims_out = [], []
        sizes = [1, 1]
        if left < len(before):
            dims_in.append(left)
            sizes[0], left = before[left], left + 1
        if right < len(after):
            dims_out.append(right)
            sizes[1], right = after[right], right + 1
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                dims_in.append(left)
                sizes[0], left = sizes[0] * before[left], left + 1
            else:
                dims_out.append(right)
                sizes[1], right = sizes[1] * after[right], right + 1
        blocks.append((dims_in, dims_out))
    return blocks


class Ties:
    """Numbers for the slices of every parameter and buffer, what ties them together, and why some must stay."""

    def __init__(self) -> None:
        self.bases: dict[tuple[str, int], tuple[int, int]] = {}  # (key, dimension): first number, size
        self.count = 0
        self._edges: list[tuple[Ids, Ids]] = []
        self._pins: list[tuple[Ids, str]] = []

    def of(self, key: str, dim: int, size: int) -> Ids:
        """The numbers of the slices of a tensor along one dimension."""
        if (key, dim) not in self.bases:
            self.bases[key, dim] = self.count, size
            self.count += size
        base, size = self.bases[key, dim]
        return np.arange(base, base + size)

    def new(self, size: int) -> Ids:
        """Numbers for channels that belong to no tensor of the model."""
        self.count += size
        return np.arange(self.count - size, self.count)

    def tie(self, one: Ids, other: Ids) -> None:
        one, other = np.broadcast_arrays(one, other)
        self._edges.append((one.reshape(-1), other.reshape(-1)))

    def tie_along(self, ids: Ids, axis: int) -> None:
        self.tie(ids, ids.take([0], axis))

    def pin(self, ids: Ids, reason: str) -> None:
        self._pins.append((ids.reshape(-1), reason))

    def classes(self) -> Ids:
        """For every number the smallest one that it is tied to."""
        labels = np.arange(self.count)
        if not self._edges:
            return labels
        one = np.concatenate([edge[0] for edge in self._edges])
        other = np.concatenate([edge[1] for edge in self._edges])
        while True:
            least = np.minimum(labels[one], labels[other])
            if bool((labels[one] == least).all() and (labels[other] == least).all()):
                return labels
            np.minimum.at(labels, labels[one], least)
            np.minimum.at(labels, labels[other], least)
            np.minimum.at(labels, one, least)
            np.minimum.at(labels, other, least)
            labels = labels[labels]

    def reasons(self, classes: Ids) -> dict[int, str]:
        """Why a class must stay, the first reason for each."""
        reasons: dict[int, str] = {}
        for ids, reason in self._pins:
            for label in np.unique(classes[ids]).tolist():
                reasons.setdefault(label, reason)
        return reasons
