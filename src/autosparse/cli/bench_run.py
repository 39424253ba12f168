"""Train a recipe and its dense twin, and compare seconds and accuracy of the whole runs, data and validation included.

Both are trained for the recipe's epochs; then the sparse one again with as many epochs as fit into the seconds of the dense
run (or both with as many as fit into --seconds). The table also says after how many seconds each had the same accuracy, a
sparse run only once it has its zeros. Dense images are trained channels_last, which is faster; --dense-set changes that.
The report in the folder draws accuracy over seconds. Runs that are there already are not repeated.

Examples:

  autosparse bench run digits --out runs/bench-digits

  autosparse bench run cifar10-resnet18 --seeds 3 --set data.path=data/cifar10 --set train.threads=2

  autosparse bench run cifar10-resnet20 --dense-set train.precision=bf16 --seconds 600
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autosparse.cli.options import ALLOW_CODE
from autosparse.cli.output import write_page
from autosparse.common.tables import Table

if TYPE_CHECKING:
    from autosparse.bench.whole_runs import Summary


def run(
    recipe: str = typer.Argument(..., metavar="RECIPE", help="A recipe's name or file."),
    changes: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Change a value of both sides; may be repeated."),
    dense_changes: list[str] = typer.Option([], "--dense-set", metavar="KEY=VALUE", help="Change a value of the dense side."),
    seeds: int = typer.Option(1, min=1, help="Runs of each side."),
    seconds: float | None = typer.Option(None, min=0.001, help="Train both for about so long; as dense by default."),
    accuracy: float | None = typer.Option(None, min=0, max=1, help="Accuracy to reach; by default what all runs reach."),
    cpu_time: bool = typer.Option(False, "--cpu-time", help="Processor time instead of the wall clock, for a busy machine."),
    out: Path | None = typer.Option(None, help="Folder of the runs; runs/bench-RECIPE by default."),
    report: bool = typer.Option(True, help="Write the HTML report."),
    allow_code: list[str] = ALLOW_CODE,
) -> None:
    from autosparse.bench.whole_runs import Contest, alone, content
    from autosparse.common.files import write_json
    from autosparse.recipes.loading import load_recipe
    from autosparse.training.run import dense_of

    chosen = load_recipe(recipe, changes)
    if chosen.dense:
        raise ValueError(f"{recipe} is dense: give a recipe with a method to compare with its dense twin")
    if cpu_time and chosen.train.threads != 1:
        raise ValueError("--cpu-time counts the time of all threads together: add --set train.threads=1")
    images = ["train.channels_last=true"] if chosen.data.kind == "images" else []
    dense = dense_of(load_recipe(recipe, [*changes, *images, *dense_changes]))
    folder = out or Path("runs") / f"bench-{chosen.name}"
    contest = Contest(alone(chosen), dense, folder, seeds, seconds, typer.echo, "processor_seconds" if cpu_time else "seconds")
    contest.run()
    goal = contest.common_accuracy() if accuracy is None else accuracy
    show(contest.summaries(goal), goal, seeds)
    write_json(folder / "bench.json", content(contest, goal, ["autosparse", *sys.argv[1:]]))
    typer.echo(f"figures: {folder / 'bench.json'}")
    if report and (page := write_page([outcome.folder for outcome in contest.outcomes], folder / "report")):
        typer.echo(f"report: {page}")


def show(rows: list[Summary], accuracy: float, seeds: int) -> None:
    """The sides as a table; ratios are of the dense run's time over ours."""
    dense = rows[0]

    def faster(ours: float | None, theirs: float | None) -> str:
        return "" if ours is None or theirs is None else f"{theirs / ours:.2f}"

    typer.echo("")
    Table(
        ["", "epochs", "seconds", "faster", "accuracy %", "zeros %", f"seconds to {100 * accuracy:.2f} %", "faster to it"],
        [
            (
                row.side,
                row.epochs,
                f"{row.seconds:.1f}",
                faster(row.seconds, dense.seconds),
                f"{100 * row.accuracy:.2f}" + (f" ± {100 * row.deviation:.2f}" if seeds > 1 else ""),
                f"{100 * row.sparsity:.2f}",
                "not reached" if row.seconds_to is None else f"{row.seconds_to:.1f}",
                faster(row.seconds_to, dense.seconds_to),
            )
            for row in rows
        ],
    ).show()
    if any(row.seconds > dense.seconds and row.epochs <= dense.epochs for row in rows[1:]):
        typer.echo("sparse was slower than dense at the same number of epochs")
