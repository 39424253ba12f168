"""Run every method at every sparsity with every seed, and a dense run beside; one table.

Finished runs are skipped and interrupted ones go on, so the same command again continues a comparison.

Examples:

  autosparse compare digits --methods autosparse,str,rigl --sparsity 0.8,0.9

  autosparse compare digits --methods all --sparsity 0.9

  autosparse compare digits --vary method.schedule=cosine,linear --seeds 1

  autosparse compare my-recipe.yaml --vary optimizer.lr=0.1,0.2 --out runs/rates
"""

from __future__ import annotations

from pathlib import Path

import typer

from autosparse.cli.options import ALLOW_CODE, fractions, words
from autosparse.cli.output import begin, run_grid


def run(
    recipe: str = typer.Argument(metavar="RECIPE", help="A recipe's name or file; see `autosparse recipes`."),
    methods: str | None = typer.Option(None, metavar="A,B", help="Methods with commas between, or all; else the recipe's."),
    sparsity: str | None = typer.Option(
        None, metavar="0.8,0.9", help="Sparsities with commas between; the recipe's by default."
    ),
    seeds: int = typer.Option(3, help="Runs of every setting, from the recipe's seed on."),
    vary: list[str] = typer.Option(
        [], metavar="A.B=V,W", help="Values to compare, such as method.schedule=cosine,sigmoid; repeatable."
    ),
    settings: list[str] = typer.Option([], "--set", metavar="A.B=C", help="Change a value of the recipe; repeatable."),
    out: Path | None = typer.Option(None, help="Folder of the runs and the table; runs/compare-RECIPE by default."),
    jobs: int | None = typer.Option(None, help="Runs at once; one per core by default, one at a time on a GPU."),
    as_json: bool = typer.Option(False, "--json", help="Print the table as JSON."),
    allow_code: list[str] = ALLOW_CODE,
) -> None:
    begin(f"comparing runs of {recipe}")
    from autosparse.common.files import refuse_unwritable
    from autosparse.experiments.compare import cells_of, steps_counter, write_tables
    from autosparse.experiments.grid import grid, parse_variation
    from autosparse.recipes.loading import load_recipe
    from autosparse.training.build import check_code

    base = load_recipe(recipe, settings)
    check_code(base.model.name)
    folder = out or Path("runs") / f"compare-{base.name}"
    refuse_unwritable(folder)
    sparsities = fractions(sparsity) if sparsity else []
    rows = grid(base, method_names(methods), sparsities, [parse_variation(text) for text in vary], seeds, steps_counter())
    outcomes = run_grid(cells_of(rows), folder, jobs)
    table = write_tables(rows, outcomes, base, folder)
    if as_json:
        typer.echo((folder / "table.json").read_text(encoding="utf-8"), nl=False)
    else:
        table.show()
        typer.echo(f"\nruns and tables: {folder}")
    if any(outcome.status == "failed" for outcome in outcomes.values()):
        raise typer.Exit(1)


def method_names(text: str | None) -> list[str]:
    """`a,b` as a list; `all` stands for every method that can start from the dense network of a recipe."""
    from autosparse.methods import METHODS, list_methods

    return [name for name in list_methods() if not METHODS[name]().traits.needs_zeros] if text == "all" else words(text)
