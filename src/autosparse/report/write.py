"""The report on disk: report.html and one PNG per figure, each written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autosparse.common.files import write_bytes, write_text
from autosparse.report import figures
from autosparse.report.page import build_page, charts_of, is_ours
from autosparse.report.runs import Run

PAGE = "report.html"


def write_report(runs: Sequence[Run], out: Path) -> Path:
    """Write the page and its figures into the folder `out`; gives the page's path. An earlier report there is renewed."""
    if not runs:
        raise ValueError("a report needs at least one run, none was given")
    page = out / PAGE
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; give a folder for the report")
    if page.exists() and not is_ours(page):
        raise FileExistsError(f"{page} exists and is not a report of ours; give another folder with --out")
    charts = charts_of(runs)
    images = {f"{chart.key}.png": figures.png(chart) for chart in charts}
    foreign = [name for name in images if (out / name).exists()]
    if foreign and not page.exists():  # looked at last: another process may have written its report meanwhile
        raise FileExistsError(f"{out / foreign[0]} exists and is not of a report of ours; give another folder with --out")
    write_text(page, build_page(runs, list(images)))  # first: it marks the folder as ours, should the rest be interrupted
    for name, image in images.items():
        write_bytes(out / name, image)
    return page
