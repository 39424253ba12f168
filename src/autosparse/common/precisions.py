"""One vocabulary for precisions: float32, bfloat16, float16, int8, and the short spellings that people also type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autosparse.common.words import did_you_mean

PRECISIONS = ("float32", "bfloat16", "float16", "int8")
SPELLINGS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def precision_name(word: str, what: str = "precision", allowed: Iterable[str] = PRECISIONS) -> str:
    """The precision that a word stands for; refused if unknown or not `allowed` here. `what` names the option."""
    choices = tuple(allowed)
    name = SPELLINGS.get(word, word)
    if name not in choices:
        known = [*choices, *(short for short, long in SPELLINGS.items() if long in choices)]
        raise ValueError(f"{what} {word!r} is not known; give {', '.join(choices)}{did_you_mean(word, known)}")
    return name


def long_spelling(value: Any) -> Any:
    """For recipes: fp32, bf16 and fp16 as their long names, anything else as it is."""
    return SPELLINGS.get(value, value) if isinstance(value, str) else value
