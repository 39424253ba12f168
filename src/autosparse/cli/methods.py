"""List the methods and what sets them apart, or describe one."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import typer

from autosparse.common.tables import Table

if TYPE_CHECKING:
    from autosparse.methods import About

COLUMNS = ("name", "year", "family", "budget", "pruned_gradient", "train_flops", "reference")
WIDTH, AUTHORS = 78, 28
MORE = "`autosparse methods NAME` says what a method does and costs; --json: everything."


def run(
    name: str | None = typer.Argument(None, help="A method: shows all about it; all are listed without one."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON, with a line of description per method."),
) -> None:
    import autosparse
    from autosparse.cli.output import print_json
    from autosparse.methods import describe

    described = [describe(one) for one in ([name] if name else autosparse.list_methods())]
    if as_json:
        print_json([{field: getattr(one, field) for field in (*COLUMNS, "doc")} for one in described])
    elif name:
        print(about(described[0]))
    else:
        rows = [[one.name, str(one.year), one.family, one.budget, authors(one.reference)] for one in described]
        Table(["name", "year", "family", "budget", "authors"], rows, notes=["", MORE]).show()


def authors(reference: str) -> str:
    """Who stands before the title, or the first of them where all do not fit."""
    names = reference.partition(",")[0].partition(" with ")[0]
    return names if len(names) <= AUTHORS else f"{names.partition(' and ')[0]} et al."


def about(one: About) -> str:
    """The facts of a method, a paragraph each, no wider than a terminal."""
    facts = {
        "family": f"{one.family}, {one.year}",
        "budget": one.budget,
        "pruned weights": f"receive {one.pruned_gradient}",
        "training FLOPs": one.train_flops,
        "paper": one.reference,
    }
    lines = [*textwrap.wrap(f"{one.name}: {one.doc}", WIDTH), ""]
    for word, text in facts.items():
        lines += textwrap.wrap(text, WIDTH, initial_indent=f"{word:<16}", subsequent_indent=" " * 16)
    return "\n".join([*lines, "", f'autosparse.method("{one.name}", ...); --set method.name={one.name}'])
