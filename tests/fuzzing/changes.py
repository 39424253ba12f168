"""Hypothesis strategies that damage a file: byte by byte, or value by value in what it holds."""

from __future__ import annotations

import copy
from typing import Any

import torch
from hypothesis import strategies as st

Path = tuple[Any, ...]
WORDS = ["", "..", "name", "os:system", "autosparse", "digits", "1e-3", "null", "[", "\x00", "\u2028", "e" * 300]

byte_changes = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "insert", "delete", "swap", "cut", "repeat", "zero"]),
        st.floats(0, 1),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-3, 12),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=6),
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "epoch", "a", ".."]), inner, max_size=3)
    ),
    max_leaves=5,
)
edits = st.lists(
    st.tuples(
        st.sampled_from(["replace", "replace", "delete", "add", "wrap", "copy"]),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
        values,
    ),
    min_size=1,
    max_size=3,
)


def change_bytes(data: bytes, changes: list[tuple[str, float, int]]) -> bytes:
    """The file with every change made, one after the other."""
    changed = bytearray(data)
    for kind, where, value in changes:
        place = min(int(where * len(changed)), max(0, len(changed) - 1))
        if not changed or kind == "insert":
            changed.insert(place, value)
        elif kind == "flip":
            changed[place] ^= 1 << value % 8
        elif kind == "set":
            changed[place] = value
        elif kind == "delete":
            del changed[place : place + 1 + value % 4]
        elif kind == "swap":
            other = (place + value) % len(changed)
            changed[place], changed[other] = changed[other], changed[place]
        elif kind == "cut":
            del changed[place:]
        elif kind == "repeat":
            changed[place:place] = changed[place : place + value]
        else:  # as a file system leaves pages that did not reach the disk
            changed[place : place + 16 * value] = bytes(len(changed[place : place + 16 * value]))
    return bytes(changed)


def change_values(tree: Any, changes: list[tuple[str, int, int, Any]]) -> Any:
    """A document with every edit made, at places that are counted through it."""
    tree = copy.deepcopy(tree)
    for kind, place, other, value in changes:
        paths = list(_paths(tree))
        path = paths[place % len(paths)]
        if not path:
            if kind == "replace" and place % 50 == 0:
                tree = value
            continue
        holder, key = _at(tree, path[:-1]), path[-1]
        if kind == "replace":
            holder[key] = value
        elif kind == "delete":
            del holder[key]
        elif kind == "add" and isinstance(holder, dict):
            holder[WORDS[other % len(WORDS)]] = value
        elif kind == "wrap":
            holder[key] = [holder[key]]
        elif kind == "copy":
            holder[key] = copy.deepcopy(_at(tree, paths[other % len(paths)]))
    return tree


def _paths(tree: Any, above: Path = ()) -> list[Path]:
    """Of all values; of a long list its first items."""
    paths: list[Path] = [above]
    if isinstance(tree, dict):
        for key, value in tree.items():
            paths += _paths(value, (*above, key))
    elif isinstance(tree, list):
        for place, value in enumerate(tree[:4]):
            paths += _paths(value, (*above, place))
    return paths


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def as_lists(tree: Any) -> Any:
    """Tuples, which nobody can edit, as lists; tensors as they are."""
    if isinstance(tree, dict):
        return {key: as_lists(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        return [as_lists(value) for value in tree]
    return tree
