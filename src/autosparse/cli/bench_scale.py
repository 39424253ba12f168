"""Compute how a run scales over machines: mean times of a step, dense and sparse, for numbers of machines and networks.

Give the times of `autosparse bench train` on one machine, each with its own batch. Nothing is sent: the exchange is that of a
ring, 2 (N - 1) messages of the N-th part of the gradients; packing them is timed here. The formula: `autosparse docs scaling`.

Example:

  autosparse bench scale --parameters 11.2e6 --sparsity 0.9 --dense-ms 900 --sparse-ms 350 --annealed-ms 600
"""

from __future__ import annotations

import typer

from autosparse.cli.options import whole_numbers, words
from autosparse.common.tables import Table


def run(
    parameters: float = typer.Option(..., min=1, help="Parameters of the model, whose gradients are exchanged."),
    sparsity: float = typer.Option(0.9, min=0, max=0.999, help="Fraction of them that is zero."),
    dense_ms: float = typer.Option(..., min=1e-6, help="Milliseconds of a dense step."),
    sparse_ms: float = typer.Option(..., min=1e-6, help="Milliseconds of a sparse step with alpha = 0."),
    annealed_ms: float | None = typer.Option(None, min=1e-6, help="Of a sparse step with alpha above 0: all gradients travel."),
    annealed_share: float = typer.Option(0.7, min=0, max=1, help="Part of the run with such steps, if their time is given."),
    machines: str = typer.Option("8,64,512", help="Numbers of machines."),
    gigabits: str = typer.Option("1,10,100", help="Gbit/s between machines."),
    overlap: float = typer.Option(0.0, min=0, max=1, help="Part of the backward pass during which gradients are sent."),
    bf16: bool = typer.Option(False, "--bf16", help="Gradients of both sides travel as bfloat16: half the bytes."),
) -> None:
    from autosparse.bench.scaling import Step, packing_seconds, scaling

    size = (2 if bf16 else 4) * parameters
    packing = packing_seconds(int(parameters), 1 - sparsity) if sparsity else 0.0
    dense = Step(dense_ms / 1e3, size)
    sparse = Step(sparse_ms / 1e3, size * (1 - sparsity), packing)
    annealed = None if annealed_ms is None else Step(annealed_ms / 1e3, size)
    share = 0.0 if annealed is None else annealed_share
    try:
        speeds = [float(word) for word in words(gigabits)]
    except ValueError:
        raise ValueError(f"--gigabits {gigabits}: give numbers above zero, such as 1,10,100") from None
    cells = scaling(dense, sparse, annealed, share, whole_numbers(machines, "--machines"), speeds, overlap)
    typer.echo(f"packing {1e3 * packing:.3g} ms per step, measured here; exchange computed, {overlap:g} of it hidden\n")
    Table(
        ["machines", "Gbit/s", "ms dense", "ms sparse", "sparse faster", "dense efficiency %", "sparse efficiency %"],
        [
            (
                cell.machines,
                f"{cell.gigabits:g}",
                f"{1e3 * cell.dense_seconds:.1f}",
                f"{1e3 * cell.sparse_seconds:.1f}",
                f"{cell.ratio:.2f}",
                f"{100 * dense.seconds / cell.dense_seconds:.0f}",
                f"{100 * ((1 - share) * sparse.seconds + share * (annealed or sparse).seconds) / cell.sparse_seconds:.0f}",
            )
            for cell in cells
        ],
    ).show()
