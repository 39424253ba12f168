"""Write a report of one run, of several side by side, or of a comparison: report.html and PNG figures.

Examples:

  autosparse report runs/digits --open

  autosparse report runs/compare-digits

  autosparse report runs/digits runs/digits-rigl --out runs/compared
"""

import webbrowser
from pathlib import Path

import typer

from autosparse.cli.output import begin


def run(
    folders: list[Path] = typer.Argument(metavar="RUN...", help="Folders of runs, or of a comparison."),
    out: Path | None = typer.Option(None, "--out", help="Folder for the report; RUN/report for one run, needed for several."),
    show: bool = typer.Option(False, "--open", help="Open the page in the browser."),
) -> None:
    begin("drawing the report")
    from autosparse.common.files import refuse_unwritable
    from autosparse.report import read_runs, write_report

    if out is None and len(folders) > 1:
        raise ValueError(f"{len(folders)} runs were given, so say where their common report goes: --out DIR")
    if out is not None:
        refuse_unwritable(out)
    runs = [run for folder in folders for run in read_runs(folder)]
    page = write_report(runs, folders[0] / "report" if out is None else out)
    unfinished = [str(one.folder) for one in runs if not one.finished]
    if unfinished:
        print(f"not finished yet: {', '.join(unfinished)}")
    print(f"report: {page}")
    print(f"figures: {len(list(page.parent.glob('*.png')))} PNG files beside it")
    if show:
        webbrowser.open(page.resolve().as_uri())
