"""From names such as table1 and fig3 to runs, and from runs to files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autosparse.common.tables import Table
from autosparse.common.words import did_you_mean
from autosparse.experiments.grid import Cell
from autosparse.experiments.paper import tables
from autosparse.experiments.paper.drawing import draw_figure
from autosparse.experiments.paper.facts import TABLES
from autosparse.experiments.paper.figures import FIGURES
from autosparse.experiments.paper.scales import Full, Scale
from autosparse.experiments.paper.small import Small
from autosparse.experiments.runner import Outcome
from autosparse.experiments.tables import failures
from autosparse.report.runs import read_run
from autosparse.training.folder import RunFolder
from autosparse.training.machine import cores

ITEMS = (*TABLES, *FIGURES)
SCALES: dict[str, type[Scale]] = {"cpu": Small, "full": Full}
RUNS = "runs"  # folder of the runs beside the tables and figures
MULTI30K = "Multi30k: train.en, train.de, val.* and test_2016_flickr.*, one sentence per line"


@dataclass
class Output:
    """What was written, and what could not be."""

    tables: list[Table] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def choose_items(names: Sequence[str]) -> list[str]:
    """The items in the paper's order; all of them when none is named."""
    for name in names:
        if name not in ITEMS:
            raise ValueError(f"the paper has no {name!r}{did_you_mean(name, ITEMS, ';')} choose from {', '.join(ITEMS)}")
    return [item for item in ITEMS if not names or item in names]


def choose_scale(name: str, settings: Sequence[str], seeds: int | None = None) -> Scale:
    """cpu or full, with the user's --set values and number of seeds."""
    if name not in SCALES:
        raise ValueError(f"--scale {name}; allowed: {', '.join(SCALES)}")
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds {seeds}; at least one is needed")
    return SCALES[name](settings, seeds)


def title_of(item: str) -> str:
    return TABLES[item][1] if item in TABLES else FIGURES[item].title


def cells_of(item: str, scale: Scale) -> list[Cell]:
    """The runs that an item is made from."""
    cells = tables.cells_of(tables.planned(item, scale)) if item in TABLES else list(FIGURES[item].runs(scale).values())
    return list({cell.name: cell for cell in cells}.values())


def missing_data(cells: Sequence[Cell]) -> str | None:
    """What has to be got before these runs can begin."""
    for cell in cells:
        path = cell.recipe.data.path
        if path is not None and not Path(path).exists():
            what = f" ({MULTI30K})" if cell.recipe.data.kind == "translation" else ""
            return f"there is no {path}; get the data{what} and give its place with --set data.path=DIR"
    return None


def make(
    items: Sequence[str], scale: Scale, outcomes: Mapping[str, Outcome], folder: Path, tell: Callable[[str], None] = print
) -> Output:
    """Write every table and figure whose runs are there; `tell` hears what takes long."""
    output = Output()
    for item in items:
        if item in TABLES:
            rows = tables.planned(item, scale)
            if item == "table4":
                outcomes = _with_bleu(tables.missing_bleu(rows, outcomes), outcomes, folder, tell)
            output.tables.append(tables.write(item, rows, outcomes, scale, folder))
            output.files.append(folder / f"{item}.md")
            continue
        labelled = FIGURES[item].runs(scale)
        reasons = failures(list(labelled.values()), outcomes)
        if reasons:
            output.problems.append(f"{item} was not drawn: {'; '.join(reasons)}")
            continue
        runs = {name: read_run(folder / RUNS / cell.name) for name, cell in labelled.items()}
        output.files += draw_figure(item, FIGURES[item], runs, scale, folder)
    return output


def _with_bleu(
    cells: Sequence[Cell], outcomes: Mapping[str, Outcome], folder: Path, tell: Callable[[str], None]
) -> dict[str, Outcome]:
    """The outcomes with the BLEU of finished translation runs, computed by `autosparse eval` in a process of its own."""
    scored = dict(outcomes)
    for number, cell in enumerate(cells, start=1):
        tell(f"[{number}/{len(cells)}] BLEU of {cell.name}, by beam search")
        run = folder / RUNS / cell.name
        environment = {**os.environ, "OMP_NUM_THREADS": str(cores())}
        command = [sys.executable, "-m", "autosparse", "eval", str(run)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            lines = ended.stderr.strip().splitlines() or ["autosparse eval failed"]
            scored[cell.name] = Outcome("failed", lines[-1].removeprefix("error: "))
        else:
            scored[cell.name] = replace(scored[cell.name], result=RunFolder(run).read_result())
    return scored
