"""Shorthands for declaring the structs that Python shares with the native library."""

from __future__ import annotations

from ctypes import c_int64, c_void_p
from functools import partial
from typing import Any


def fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    """Fields of one type, for `_fields_` of a Structure."""
    return [(name, kind) for name in names]


integers = partial(fields, c_int64)
addresses = partial(fields, c_void_p)
