"""Time training steps: plain dense torch (channels_last), and AutoSparse with its zeros skipped, in turn in one process.

WHAT is a built-in model, your own module:function that returns one (for images, or with --inputs for anything; then the
loss is the mean square of its outputs), or the folder of a finished run: then its model trains on a batch of its own data,
with masks by magnitude at the density that the run has learned for each layer. A step is the whole of it: threshold
gradients, optimizer, new masks. Ratios are of dense torch's time over ours.

Examples:

  autosparse bench train resnet50 --batch 16 --threads 2

  autosparse bench train transformer --tokens 1024 --sparsity 0.9 --layers

  autosparse bench train resnet50 --precision bfloat16

  autosparse bench train mynet:build --image 3,224,224 --alpha 0.5

  autosparse bench train mynet:build --inputs mynet:batch --method rigl --sparsity 0.9
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autosparse.cli.options import ALLOW_CODE, fractions, whole_numbers, words
from autosparse.common.tables import Table

if TYPE_CHECKING:
    from autosparse.bench.tasks import Task
    from autosparse.bench.training import Row, Settings, Start
    from autosparse.compute.compute import LayerPlan

MODES = ("auto", "dense", "sparse")
PRECISIONS = ("float32", "bfloat16")


def run(
    what: str = typer.Argument("resnet50", metavar="[WHAT]", help="A built-in model, module:function, or a run's folder."),
    sparsity: str = typer.Option("0.8,0.9,0.95", help="Fractions of zeros that every layer starts with."),
    batch: int = typer.Option(16, min=1, help="Images of a step."),
    tokens: int = typer.Option(1024, min=1, help="Tokens of a step, for the transformer."),
    image: str | None = typer.Option(None, help="Shape of an image, such as 3,224,224, for a model of your own."),
    threads: int = typer.Option(2, min=1, help="Threads of both sides."),
    rounds: int = typer.Option(9, min=1, help="Timed steps of each side."),
    alpha: float = typer.Option(0.0, help="What pruned weights receive of their gradient; above 0 it is made for all weights."),
    dense_grad_every: int = typer.Option(
        1, min=1, help="With alpha: make that gradient at every k-th step only; the mean of k steps is timed."
    ),
    backward_sparsity: float = typer.Option(0.0, help="With alpha: make no gradient for this fraction of smallest weights."),
    method: str = typer.Option(
        "autosparse", help="Another method, such as rigl or random; the mean of a whole update cycle is timed."
    ),
    inputs: str | None = typer.Option(None, help="Your own module:function that returns a batch: for models of any input."),
    precision: str = typer.Option("float32", help="float32, or bfloat16 autocast, beside dense torch in both precisions."),
    compute: str = typer.Option("auto", help="auto, sparse, dense: how AutoSparse's layers run; several take turns."),
    layer_by_layer: bool = typer.Option(False, "--layer-by-layer", help="Do not fuse batch norms with convolutions."),
    exclude: str = typer.Option("", help="Layers to leave dense, such as fc or output, separated by commas."),
    default_malloc: bool = typer.Option(
        False, "--default-malloc", help="Leave glibc as it is: it returns memory to the system."
    ),
    cpu_time: bool = typer.Option(False, "--cpu-time", help="Processor time instead of the wall clock, for a busy machine."),
    memory: bool = typer.Option(True, "--memory/--no-memory", help="Measure peak memory, in a process for each side."),
    layers: bool = typer.Option(False, "--layers", help="Print how every layer runs."),
    out: Path | None = typer.Option(None, help="JSON file to write."),
    force: bool = typer.Option(False, "--force", help="Replace the JSON file if it is there."),
    allow_code: list[str] = ALLOW_CODE,
) -> None:
    from autosparse.bench.training import Settings, Start, prepare
    from autosparse.common.files import refuse_existing, refuse_unwritable

    if out is not None:
        refuse_existing(out, force)
        refuse_unwritable(out)
    modes = checked(compute, precision)
    settings = Settings(
        what=what,
        batch=batch,
        tokens=tokens,
        image=None if image is None else tuple(whole_numbers(image, "--image")),
        threads=threads,
        alpha=alpha,
        dense_grad_every=dense_grad_every,
        backward_sparsity=backward_sparsity,
        layer_by_layer=layer_by_layer,
        exclude=tuple(words(exclude)),
        default_malloc=default_malloc,
        cpu_time=cpu_time,
        method=method,
        inputs=inputs,
        precision=precision,
    )
    task = prepare(settings)
    begins: list[float | None] = [None] if task.densities is not None else [*fractions(sparsity)]
    measure(task, settings, [Start(begin, mode, method) for begin in begins for mode in modes], rounds, memory, layers, out)


def checked(compute: str, precision: str) -> list[str]:
    """The modes that are asked for."""
    modes = words(compute)
    if not modes or not set(modes) <= set(MODES):
        raise ValueError(f"--compute {compute} is not known; give {', '.join(MODES)}")
    if precision not in PRECISIONS:
        raise ValueError(f"--precision {precision} is not known; give {' or '.join(PRECISIONS)}")
    return modes


def measure(
    task: Task, settings: Settings, starts: list[Start], rounds: int, memory: bool, layers: bool, out: Path | None
) -> None:
    """Measure, print and write."""
    from autosparse.bench.training import compare, contestants, peak_bytes, training_conditions
    from autosparse.common.files import write_json

    facts = training_conditions(settings)
    typer.echo("\n".join(f"{name}: {value}" for name, value in facts.items()))
    rows, sides = compare(task, settings, starts, rounds)
    if memory:
        sides_of = contestants(settings, starts)
        rows = [replace(row, peak_bytes=peak_bytes(*sides_of[row.side])) for row in rows]
    threads = f"{settings.threads} thread{'s' if settings.threads > 1 else ''}"
    typer.echo(f"\n{task.name}, {task.size}, {threads}, {settings.precision}, alpha {settings.alpha:g}")
    show(rows)
    tables = {name: side.sp.layer_plans() for name, side in sides.items() if side.sp is not None}
    if layers:
        for name, table in tables.items():
            show_layers(name, table)
    if out is not None:
        plans = {name: [asdict(plan) for plan in table] for name, table in tables.items()}
        figures = [row.as_dict() for row in rows]
        write_json(out, {"machine": facts, "settings": asdict(settings), "rows": figures, "layers": plans})
        typer.echo(f"written to {out}")


def show(rows: list[Row]) -> None:
    """All sides as a table."""

    def memory(row: Row) -> str:
        if row.peak_bytes is None or rows[0].peak_bytes is None:
            return ""
        return f"{row.peak_bytes / 2**20:,.0f} ({row.peak_bytes / rows[0].peak_bytes:.3f})"

    Table(
        ["", "ms (median)", "ms (least)", "faster (medians)", "faster (least)", "zeros now", "peak MiB (ratio)"],
        [
            [row.side, f"{1000 * row.median:.1f}", f"{1000 * row.least:.1f}", f"{row.faster_median:.2f}",
             f"{row.faster_least:.2f}", "" if row.sparsity is None else f"{row.sparsity:.2%}", memory(row)]
            for row in rows
        ],
    ).show()  # fmt: skip
    for row in rows[1:]:
        typer.echo(f"{row.side}: {row.compute}")


def show_layers(title: str, table: list[LayerPlan]) -> None:
    """How every layer of a side runs."""

    def milliseconds(value: float | None) -> str:
        return "" if value is None else f"{1000 * value:.2f}"

    typer.echo(f"\n{title}")
    Table(
        ["layer", "weight", "density", "computed", "ms dense", "ms as run (planner)"],
        [
            [row.name, "x".join(map(str, row.shape)), row.density, str(row),
             milliseconds(row.dense_seconds), milliseconds(row.seconds)]
            for row in table
        ],
    ).show()  # fmt: skip
