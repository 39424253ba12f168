"""Help with examples to copy, options that several verbs share, and values with commas between."""

from __future__ import annotations

import re
import textwrap
from types import ModuleType

import typer

from autosparse.common.allowed import allow

NO_BREAK = "\N{NO-BREAK SPACE}"

# The verbs need not look at it: the packages are allowed when the option is read.
ALLOW_CODE = typer.Option(
    [],
    "--allow-code",
    metavar="PACKAGE",
    callback=allow,
    help="Let the recipe or run use code of this package; repeatable. See SECURITY.md.",
)


def help_of(verb: ModuleType) -> str:
    """The file's docstring with its examples, the indented paragraphs, as lines that a shell takes as they are printed."""
    paragraphs = (verb.__doc__ or "").split("\n\n")
    return "\n\n".join(kept_as_typed(one) if one.startswith("  ") else one for one in paragraphs)


def kept_as_typed(example: str) -> str:
    """A command whose lines the help must not break by itself: \\b tells it so."""
    glued = re.sub(r"(--[\w-]+) (?=[^-])", rf"\1{NO_BREAK}", example.strip())  # an option and its value stay together
    lines = textwrap.wrap(glued, 72, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
    return "  \b\n" + " \\\n".join(lines).replace(NO_BREAK, " ")


def words(text: str | None) -> list[str]:
    """`a, b` as ["a", "b"], without repetition."""
    return list(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def whole_numbers(text: str, option: str) -> list[int]:
    """`1,8` as [1, 8]."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{option} {text}: give whole numbers above zero, such as 1,8,32")
    return [int(part) for part in parts]


def fractions(text: str) -> list[float]:
    """`0.8,0.9` of --sparsity as numbers."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [-1.0]
    if not all(0 <= value < 1 for value in values):
        raise ValueError(f"--sparsity {text}: give fractions of zeros from 0 to below 1, such as 0.8,0.9")
    return values
