"""Argument checks shared by the model builders; each error names the argument, the value and what is allowed."""

from collections.abc import Sequence


def whole(name: str, value: int, minimum: int = 1) -> int:
    """The value if it is a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__})")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    return value


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """The value if it is one of the allowed words."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def probability(name: str, value: float) -> float:
    """The value if it lies in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
    return value
