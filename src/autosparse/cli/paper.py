"""Run the paper's experiments and write its tables and figures, the paper's numbers beside ours.

With no names, all of them. `--scale cpu` uses small nets on the embedded digits and needs no data (table4: Multi30k);
`--scale full` runs the paper's recipes and needs ImageNet-1K or WMT14, and GPUs. Runs are shared between tables and
figures; finished ones are skipped and interrupted ones go on, so the same command again continues.

Examples:

  autosparse paper --list

  autosparse paper table1 fig1a fig4

  autosparse paper table4 --seeds 1 --set data.path=DIR

  autosparse paper table3 --scale full
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autosparse.cli.output import begin, run_grid
from autosparse.common.tables import Table

if TYPE_CHECKING:
    from autosparse.experiments.grid import Cell

WIDTH = 78


def run(
    items: list[str] = typer.Argument(None, metavar="NAME", help="table1 to table5, fig1a, fig1b, fig2 to fig6."),
    scale: str = typer.Option("cpu", help="cpu: minutes on two cores; full: the paper's own recipes."),
    settings: list[str] = typer.Option(
        [], "--set", help="A value of the recipes, such as data.path=DIR; at cpu scale table4's."
    ),
    seeds: int | None = typer.Option(None, help="Runs of every row; 3 at cpu scale, 1 at full scale by default."),
    out: Path | None = typer.Option(None, help="Folder of the tables, figures and runs; runs/paper-SCALE by default."),
    jobs: int | None = typer.Option(None, help="Runs at once; one per core by default, one at a time on a GPU."),
    only_list: bool = typer.Option(False, "--list", help="Say what there is and how many runs are done."),
) -> None:
    begin(f"the paper at {scale} scale")
    from autosparse.common.files import refuse_unwritable
    from autosparse.experiments.paper import making

    size = making.choose_scale(scale, settings, seeds)
    chosen = making.choose_items(items or [])
    folder = out or Path("runs") / f"paper-{size.name}"
    plan = {item: making.cells_of(item, size) for item in chosen}
    if only_list:
        list_items(plan, folder)
        return
    refuse_unwritable(folder)
    absent = {item: reason for item, cells in plan.items() if (reason := making.missing_data(cells))}
    for item, reason in absent.items():
        typer.echo(f"{item} is left out: {reason}", err=True)
    ready = [item for item in chosen if item not in absent]
    cells = list({cell.name: cell for item in ready for cell in plan[item]}.values())
    outcomes = run_grid(cells, folder / making.RUNS, jobs)
    output = making.make(ready, size, outcomes, folder, lambda line: typer.echo(line, err=True))
    for table in output.tables:
        table.show()
        typer.echo()
    for path in output.files:
        typer.echo(str(path))
    for problem in output.problems:
        typer.echo(problem, err=True)
    if output.problems or absent or any(outcome.status == "failed" for outcome in outcomes.values()):
        raise typer.Exit(1)


def list_items(plan: dict[str, list[Cell]], folder: Path) -> None:
    """A line for every item: what it shows, its runs, and how many are done."""
    from autosparse.experiments.paper import making
    from autosparse.training.folder import RunFolder

    rows, needs = [], []
    for item, cells in plan.items():
        done = sum(RunFolder(folder / making.RUNS / cell.name).done for cell in cells)
        rows.append([item, title := making.title_of(item), len(cells), done])
        if missing := making.missing_data(cells):
            rows[-1][1] = f"{title} *"
            needs += ["", *textwrap.wrap(f"* {item}: {missing}", WIDTH)]
    Table(["name", "shows", "runs", "done"], rows, notes=needs).show()
