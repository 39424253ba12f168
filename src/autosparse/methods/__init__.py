"""All methods behind one switch: `method(name, **fields)`. A new method is one file and one line here."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from autosparse.methods.autosparse import STR, AutoSparse
from autosparse.methods.base import About, Method

__all__ = ["METHODS", "STR", "AutoSparse", "Method", "describe", "list_methods", "method"]

METHODS: dict[str, type[Method]] = {cls.about.name: cls for cls in (AutoSparse, STR)}


def list_methods() -> list[str]:
    """The names that `method` takes."""
    return list(METHODS)


def method(name: str, **fields: Any) -> Method:
    """A method by its name, with the fields of its config class."""
    cls = _lookup(name)
    known = [field.name for field in dataclasses.fields(cls)]
    for field in fields:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=3, cutoff=0.4)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ValueError(f"{name} has no field {field!r}{hint} Its fields: {', '.join(known)}")
    return cls(**fields)


def describe(name: str) -> About:
    """The method's row in the table of methods."""
    return _lookup(name).about


def _lookup(name: str) -> type[Method]:
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"there is no method {name!r}{hint} Methods: {', '.join(METHODS)}")
    return METHODS[name]
