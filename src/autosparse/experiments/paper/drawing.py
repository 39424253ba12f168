"""A figure of the paper as PNG and SVG, with its scale written on it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from autosparse.common.files import write_bytes
from autosparse.experiments.paper.figures import PaperFigure, Runs
from autosparse.experiments.paper.scales import Scale
from autosparse.report.figures import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 160


def draw_figure(name: str, figure: PaperFigure, runs: Runs, scale: Scale, folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg."""
    drawn = drawing_of(name, figure, runs, scale)
    paths = []
    for kind in ("png", "svg"):
        buffer = io.BytesIO()
        # no date: the same runs give the same file
        metadata = {"Date": None} if kind == "svg" else {}
        drawn.savefig(buffer, format=kind, dpi=DPI, bbox_inches="tight", pad_inches=0.15, metadata=metadata)
        paths.append(write_bytes(folder / f"{name}.{kind}", buffer.getvalue()))
    return paths


def drawing_of(name: str, figure: PaperFigure, runs: Runs, scale: Scale) -> Figure:
    """The figure with its title above and its scale below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    layers = max((len(run.layers) for run in runs.values()), default=0)
    drawn = Drawing(figsize=(figure.width, figure.height + figure.row_height * layers), layout="constrained", facecolor="white")
    FigureCanvasAgg(drawn)
    figure.draw(runs, drawn)
    if len(drawn.axes) == 1:
        drawn.axes[0].set_title("", loc="left")  # the figure's own title says it
    number = name.removeprefix("fig")
    drawn.suptitle(f"Figure {number}: {figure.title}", fontsize=13, fontweight="bold", color=INK, x=0.01, ha="left")
    drawn.supxlabel(scale.caption(figure.networks, 1), fontsize=9, color=INK, x=0.01, ha="left")
    return drawn
