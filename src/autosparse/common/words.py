"""Sentences and numbers that people read, written in one way everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """ "; did you mean 'epochs'?" if a known word is close, else `otherwise`."""
    close = get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else otherwise


def few(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, and dots if there are more."""
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def counted(number: int, thing: str) -> str:
    """1 seed, 3 seeds."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def require(ok: bool, name: str, given: object, allowed: str) -> None:
    """Refuse a value: what was given, what is allowed."""
    if not ok:
        raise ValueError(f"{name} is {given!r}; allowed: {allowed}")


def duration(seconds: float) -> str:
    """3.2 s, 40 s, 5 min, 2 h 05 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def gain_words(gain: Mapping[str, Any]) -> str:
    """What a whole run took, and a dense one, in either direction; `gain` is that of a result."""
    seconds, dense = float(gain["seconds"]), float(gain["dense_seconds"])
    how = "trained beside it" if gain.get("dense") == "measured" else "estimated from the times of its steps"
    verdict = "" if dense >= seconds else ": sparse was slower"
    return f"{duration(seconds)}, a dense run of as many steps {duration(dense)} ({how}){verdict}"
