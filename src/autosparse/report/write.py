"""The report on disk: report.html and one PNG a figure, each written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autosparse.common.warnings import warn
from autosparse.report.charts import Chart
from autosparse.report.page import GENERATOR, build_page, charts_of
from autosparse.report.runs import Run

PAGE = "report.html"


def write_report(runs: Sequence[Run], out: Path) -> Path:
    """Write the page and its figures into the folder `out`; gives the page's path. An earlier report there is renewed."""
    if not runs:
        raise ValueError("a report needs at least one run, none was given")
    page = out / PAGE
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; give a folder for the report")
    earlier = page.exists()
    if earlier and GENERATOR not in page.read_text("utf-8", errors="replace")[:1000]:
        raise FileExistsError(f"{page} exists and is not a report of ours; give another folder with --out")
    charts = charts_of(runs)
    images = draw_images(charts)
    foreign = [name for name in images if not earlier and (out / name).exists()]
    if foreign:
        raise FileExistsError(f"{out / foreign[0]} exists and is not of a report of ours; give another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    for name, image in images.items():
        write_whole(out / name, image)
    return write_whole(page, build_page(runs, list(images)).encode("utf-8"))


def draw_images(charts: Sequence[Chart]) -> dict[str, bytes]:
    """PNG files by name; none, with a warning, where matplotlib is not installed."""
    from autosparse.report import figures

    try:
        return {f"{chart.key}.png": figures.png(chart) for chart in charts}
    except ModuleNotFoundError as error:
        warn(f"no PNG figures were drawn: {error.name} is not installed; the page needs none")
        return {}


def write_whole(path: Path, content: bytes) -> Path:
    """Write beside, then rename: a reader never sees half a file."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path
