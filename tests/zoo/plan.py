"""Which cells there are: two for every member, all four precisions and optimizers for some, compiled and in two processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .member import Member
from .members import members_of

EVERYWHERE = ("float32 SGD", "bfloat16 AdamW")
PRECISIONS = ("float32 AdamW", "bfloat16 SGD")
COMPILED, PROCESSES = "compiled", "two processes"


class CellName(NamedTuple):
    library: str
    member: str
    variant: str

    def __str__(self) -> str:
        return f"{self.member}, {self.variant}"


def variants_of(member: Member) -> list[str]:
    more = PRECISIONS if member.all_precisions else ()
    return [*EVERYWHERE, *more, *[COMPILED] * bool(member.compiles), *[PROCESSES] * member.in_two_processes]


def plan(libraries: Iterable[str], names: Sequence[str] | None = None, variants: Sequence[str] | None = None) -> list[CellName]:
    return [
        CellName(library, member.name, variant)
        for library in libraries
        for member in members_of(library)
        for variant in variants_of(member)
        if (names is None or member.name in names) and (variants is None or variant in variants)
    ]
