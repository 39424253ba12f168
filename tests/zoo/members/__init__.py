"""The members, grouped by the library that they are from."""

from __future__ import annotations

from importlib import import_module

from ..member import Member


def members_of(library: str) -> list[Member]:
    """Imported only now: the libraries of the other members need not be installed."""
    return list(import_module(f"{__name__}.{library}_nets").MEMBERS)


def find(library: str, name: str) -> Member:
    named = {member.name: member for member in members_of(library)}
    if name not in named:
        raise KeyError(f"no member {name!r} of {library}; there are {', '.join(named)}")
    return named[name]
