"""Time inference: ours, torch, and dense onnxruntime and OpenVINO with the same threads, in turn in one process.

WHAT is a built-in model, or bert_base (128 tokens; needs transformers), pruned here by magnitude (uniformly, all but the stem,
depthwise layers and the classifier), your own module:function with --inputs, pruned likewise, or the folder of a finished run,
taken as it is. On one thread processor time is measured, on more the wall clock; ratios are of the least times. Transformers
are timed translating greedily, a token at a time, with the vocabulary layer dense as recipes leave it, and pruned too. What is
measured of a run goes into its bench.json, where its model card finds it.

With --rows-per-pattern 2 two neighbouring output channels share their zeros, as those that a method with rows_per_pattern
trains; finished runs are taken as they are.

With --precision int8 or bfloat16 the dense engines compute so too: onnxruntime int8 (static, per channel, calibrated), OpenVINO
int8 and bfloat16, torch under bfloat16 autocast. Engines that are not installed are named and left out.

Examples:

  autosparse bench infer resnet50 mobilenet_v1 --batch 1 --threads 1 --out speed.json

  autosparse bench infer mynet:build --inputs mynet:batch --batch 8

  autosparse bench infer resnet50 --precision float32,int8 --batch 1 --threads 1

  autosparse bench infer bert_base --sparsity 0.9 --precision int8 --batch 1 --threads 1 --no-compile

  autosparse bench infer runs/digits
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autosparse.cli.options import ALLOW_CODE, fractions, whole_numbers, words
from autosparse.common.tables import Table

if TYPE_CHECKING:
    from autosparse.bench.inference import Measurement
    from autosparse.serving.native import LayerChoice

MODELS = ("resnet50", "mobilenet_v1", "transformer")


def run(
    what: list[str] = typer.Argument(None, metavar="[WHAT]...", help="Built-in models, module:function or run folders."),
    sparsity: str = typer.Option("0.8,0.9,0.95", help="Fractions of zeros for built-in models."),
    rows_per_pattern: int = typer.Option(1, min=1, help="Neighbouring output channels that share their zeros."),
    inputs: str | None = typer.Option(None, help="Your own module:function that returns a batch, for a model of your own."),
    batch: str = typer.Option("1,8,32", help="Samples at a time."),
    threads: str = typer.Option("1,2", help="Numbers of threads."),
    precision: str = typer.Option("float32", help="float32, bfloat16, int8, or several with commas between."),
    rounds: int = typer.Option(15, help="Timed calls of each contestant."),
    compiled: bool = typer.Option(True, "--compile/--no-compile", help="Whether torch.compile takes part."),
    layers: bool = typer.Option(False, "--layers", help="Print how every layer is computed."),
    out: Path | None = typer.Option(None, help="JSON file to write; of a run, bench.json in its folder by default."),
    force: bool = typer.Option(False, "--force", help="Replace JSON files that are there."),
    allow_code: list[str] = ALLOW_CODE,
) -> None:
    from autosparse.bench.engines import PRECISIONS
    from autosparse.bench.inference import Settings, inference_conditions, measure_all
    from autosparse.common.files import refuse_existing, refuse_unwritable, write_json
    from autosparse.common.precisions import precision_name
    from autosparse.export.card import BENCH

    if rounds < 1:
        raise ValueError(f"--rounds {rounds}: give 1 or more")
    precisions = [precision_name(word, "--precision", PRECISIONS) for word in words(precision)]
    if not precisions:
        raise ValueError(f"--precision: give {', '.join(PRECISIONS)}, or several with commas between")
    sizes = whole_numbers(batch, "--batch"), whole_numbers(threads, "--threads")
    sparsities, names = fractions(sparsity), what or list(MODELS)
    files = {name: out or (Path(name) / BENCH if Path(name).is_dir() else None) for name in names}
    for file in filter(None, files.values()):
        refuse_existing(file, force)
        refuse_unwritable(file)
    facts = inference_conditions()
    typer.echo("\n".join(f"{name}: {value}" for name, value in facts.items()))
    written: dict[Path, dict[str, Any]] = {}
    for name in names:
        settings = Settings(name, sparsities, rounds, compiled, inputs, precisions, rows_per_pattern)
        for measured in measure_all(settings, *sizes):
            show(measured)
            if layers:
                for title, table in measured.layers.items():
                    show_layers(f"{measured.rows[0].model}, {title}", table)
            if (path := files[name]) is not None:
                record(written.setdefault(path, {"machine": facts, "rows": [], "layers": {}}), measured)
                write_json(path, written[path])
    for path in written:
        typer.echo(f"written to {path}")


def record(content: dict[str, Any], measured: Measurement) -> None:
    """Add one condition to what a file holds."""
    content["rows"] += [asdict(row) for row in measured.rows]
    first = measured.rows[0]
    for title, table in measured.layers.items():
        condition = f"{first.model}, batch {first.batch}, {first.threads} threads, {title}"
        content["layers"][condition] = [asdict(choice) for choice in table]


def show(measured: Measurement) -> None:
    """One condition as a table."""
    for note in measured.notes:
        typer.echo(f"note: {note}")
    first = measured.rows[0]
    typer.echo(f"\n{first.model}, batch {first.batch}, {first.threads} thread{'s' if first.threads > 1 else ''}")

    def ratio(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    Table(
        ["", "ms (least)", "ms (median)", "samples/s", "over onnxruntime", "over torch", "over best dense"],
        [
            [row.contestant, f"{row.milliseconds:.2f}", f"{row.median:.2f}", f"{row.samples_per_second:.1f}",
             ratio(row.over_onnxruntime), ratio(row.over_torch), ratio(row.over_best_dense)]
            for row in measured.rows
        ],
    ).show()  # fmt: skip


def show_layers(title: str, table: list[LayerChoice]) -> None:
    """How every layer is computed."""
    typer.echo(f"\n{title}")
    Table(
        ["layer", "kind", "weights", "density", "computed", "us", "why torch"],
        [
            [row.name, row.kind, row.weights, row.density, row.how,
             "" if row.microseconds is None else f"{row.microseconds:.0f}", row.reason]
            for row in table
        ],
    ).show()  # fmt: skip
