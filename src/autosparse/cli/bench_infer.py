"""`autosparse bench infer`: the deployed model beside torch and onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from autosparse.bench.inference import Row
    from autosparse.serving.native import LayerChoice

MODELS = ("resnet50", "mobilenet_v1", "transformer")
DENSE_LAYERS = ("fc", "output")  # the classifier and the vocabulary, as the sparse recipes leave them
SENTENCE, TOKENS = 24, 24  # of a translation: words to read, tokens to write
HELP = """Time inference: ours, torch eager, torch.compile, and dense onnxruntime with the same threads, in turn in one process.

WHAT is a built-in model, pruned here by magnitude (uniformly, all but the stem, depthwise layers and the classifier), or
the folder of a finished run, taken as it is. On one thread processor time is measured, on more the wall clock; ratios are
of the least times. Transformers are timed translating greedily, a token at a time, with the vocabulary layer dense as
recipes leave it, and pruned like the rest. What is measured of a run goes into its bench.json, where its model card finds it.

Examples:

  autosparse bench infer resnet50 mobilenet_v1 --batch 1 --threads 1 --out speed.json

  autosparse bench infer runs/digits
"""


def run(
    what: list[str] = typer.Argument(None, metavar="[WHAT]...", help="Built-in models or run folders; all three by default."),
    sparsity: str = typer.Option("0.8,0.9,0.95", help="Fractions of zeros for built-in models."),
    batch: str = typer.Option("1,8,32", help="Samples at a time."),
    threads: str = typer.Option("1,2", help="Numbers of threads."),
    rounds: int = typer.Option(15, help="Timed calls of each contestant."),
    compiled: bool = typer.Option(True, "--compile/--no-compile", help="Whether torch.compile takes part."),
    layers: bool = typer.Option(False, "--layers", help="Print how every layer is computed."),
    out: Path | None = typer.Option(None, help="JSON file to write; of a run, bench.json in its folder by default."),
    force: bool = typer.Option(False, "--force", help="Replace JSON files that are there."),
) -> None:
    import torch

    from autosparse.training.folder import write_json

    if rounds < 1:
        raise ValueError(f"--rounds {rounds}: give 1 or more")
    batches, counts, sparsities = numbers(batch, "--batch"), numbers(threads, "--threads"), fractions(sparsity)
    names = what or list(MODELS)
    files = {name: out or run_file(name) for name in names}
    for given in filter(None, files.values()):
        if given.exists() and not force:
            raise ValueError(f"{given} is there already; give another --out, or --force to replace it")
    facts = machine()
    typer.echo("\n".join(f"{name}: {value}" for name, value in facts.items()))
    found: dict[Path, dict[str, Any]] = {}
    before = torch.get_num_threads()
    try:
        for name in names:
            file = files[name]
            for count in counts:
                torch.set_num_threads(count)
                for samples in batches:
                    rows, choices = measure(name, sparsities, samples, count, rounds, compiled)
                    show(rows)
                    if layers:
                        for title, table in choices.items():
                            show_layers(f"{short(name)}, {title}", table)
                    if file is not None:
                        record(found.setdefault(file, {"machine": facts, "rows": [], "layers": {}}), rows, choices)
                        write_json(file, found[file])
    finally:
        torch.set_num_threads(before)
    for file in found:
        typer.echo(f"written to {file}")


def run_file(name: str) -> Path | None:
    """Where a run keeps what is measured of it; None for a built-in model."""
    from autosparse.export.card import BENCH

    return Path(name) / BENCH if Path(name).is_dir() else None


def record(content: dict[str, Any], rows: list[Row], choices: dict[str, list[LayerChoice]]) -> None:
    """Add one condition to what a file holds."""
    content["rows"] += [row.as_dict() for row in rows]
    condition = f"{rows[0].model}, batch {rows[0].batch}, {rows[0].threads} threads"
    for title, table in choices.items():
        content["layers"][f"{condition}, {title}"] = [asdict(each) for each in table]


def short(name: str) -> str:
    """A model's name, or that of a run's folder: where a disk has it is nobody's business."""
    return Path(name).resolve().name if Path(name).is_dir() else name


run.__doc__ = HELP


def numbers(text: str, option: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{option} {text}: give whole numbers above zero, such as 1,8,32")
    return [int(part) for part in parts]


def fractions(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= each < 1 for each in found):
        raise ValueError(f"--sparsity {text}: give fractions of zeros from 0 to below 1, such as 0.8,0.9")
    return found


def machine() -> dict[str, Any]:
    """Where this is measured, and with what."""
    from autosparse.kernels import library
    from autosparse.training.machine import cores, cpu_model, installed_version

    engine = library.engine()
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "kernels": engine.instruction_set if engine else f"none: {library.why_not()}",
        **{package: installed_version(package) for package in ("autosparse", "torch", "onnxruntime")},
        "baseline": "onnxruntime dense, full graph optimisation, the same threads; ratios are of the least times",
        "clock": "processor time on one thread, wall clock on more",
    }


def contestants(name: str, sparsities: list[float]) -> Iterator[tuple[str, nn.Module]]:
    """The models to deploy: a run's own, or a built-in one at every sparsity."""
    if Path(name).is_dir():
        from autosparse.cli.export import open_finished

        model = open_finished(Path(name)).model.float()
        yield f"ours, {zeros(model):.1%} zeros (learned)", model
        return
    for sparsity in sparsities:
        yield f"ours, {sparsity:.0%} zeros", pruned(name, sparsity)
        if name == "transformer":
            yield f"ours, {sparsity:.0%} zeros, vocabulary too", pruned(name, sparsity, dense_layers=())


def zeros(model: nn.Module) -> float:
    """The fraction of zeros among the weights of convolutions and linear layers."""
    from torch import nn

    weights = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    return sum(int((weight == 0).sum()) for weight in weights) / max(sum(weight.numel() for weight in weights), 1)


def pruned(name: str, sparsity: float, dense_layers: tuple[str, ...] = DENSE_LAYERS) -> nn.Module:
    """A built-in model with the smallest weights of other layers set to zero; batch norms as after some training."""
    import torch
    from torch import nn

    from autosparse import models

    torch.manual_seed(0)
    model = models.build(name).eval().requires_grad_(False)
    for layer_name, layer in model.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_var is not None
            layer.running_var.uniform_(0.5, 1.5)
        if not isinstance(layer, nn.Conv2d | nn.Linear) or layer_name in dense_layers or sparsity == 0:
            continue
        if isinstance(layer, nn.Conv2d) and (layer.groups > 1 or layer_name == "conv1"):
            continue
        size = layer.weight.abs()
        layer.weight *= size > size.flatten().kthvalue(max(1, round(sparsity * size.numel()))).values
    return model


def example(name: str, batch: int) -> tuple[Tensor, ...]:
    """Inputs of the usual size; of a run, samples of its own data."""
    import torch

    from autosparse.cli.flops import INPUTS

    if not Path(name).is_dir():
        if name not in INPUTS:
            raise ValueError(f"{name} is neither a built-in model ({', '.join(INPUTS)}) nor the folder of a run")
        if name == "transformer":
            return (torch.randint(3, 30000, (batch, SENTENCE)),)
        return (torch.randn(batch, *map(int, INPUTS[name].split(",")[1:])),)
    from autosparse.cli.export import open_finished
    from autosparse.data import open_data

    inputs, _ = next(iter(open_data(open_finished(Path(name)).recipe.data).validation.epoch(0)))
    return tuple(torch.cat([each] * -(-batch // len(each)))[:batch] for each in inputs)


def measure(
    name: str, sparsities: list[float], batch: int, threads: int, rounds: int, compiled: bool
) -> tuple[list[Row], dict[str, list[LayerChoice]]]:
    """All contestants under one condition, and how ours compute their layers."""
    import torch

    from autosparse.bench.decoding import translation_contestants
    from autosparse.bench.inference import dense_contestants, rows_of, take_turns
    from autosparse.models.transformer import Transformer
    from autosparse.serving import Deployed, deploy

    inputs = example(name, batch)
    models = list(contestants(name, sparsities))
    with torch.no_grad():
        if isinstance(models[0][1], Transformer):
            translators = {title: model for title, model in models if isinstance(model, Transformer)}
            calls, notes, ours = translation_contestants(translators, inputs[0], threads, TOKENS)
            tables = {title: deployed.layers() for title, deployed in ours.items()}
        else:
            ours = {}
            for title, model in models:
                deployed = deploy(model, inputs, threads=threads)
                assert isinstance(deployed, Deployed)
                ours[title] = deployed
            dense, notes = dense_contestants(models[-1][1], inputs, threads, compiled)
            calls = dense | {title: (lambda deployed=deployed: deployed(*inputs)) for title, deployed in ours.items()}
            tables = {title: deployed.layers(*inputs) for title, deployed in ours.items()}
        timings = take_turns(calls, threads, rounds)
    for note in notes:
        typer.echo(f"note: {note}")
    return rows_of(short(name), batch, threads, timings), tables


def show(rows: list[Row]) -> None:
    """One condition as a table."""
    from autosparse.cli.output import print_table

    first = rows[0]
    typer.echo(f"\n{first.model}, batch {first.batch}, {first.threads} thread{'s' if first.threads > 1 else ''}")

    def ratio(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    print_table(
        ["", "ms (least)", "ms (median)", "samples/s", "over onnxruntime", "over torch"],
        [
            [row.contestant, f"{row.milliseconds:.2f}", f"{row.median:.2f}", f"{row.samples_per_second:.1f}",
             ratio(row.over_onnxruntime), ratio(row.over_torch)]
            for row in rows
        ],
    )  # fmt: skip


def show_layers(title: str, table: list[LayerChoice]) -> None:
    """How every layer is computed."""
    from autosparse.cli.output import print_table

    typer.echo(f"\n{title}")
    print_table(
        ["layer", "kind", "weights", "density", "computed", "us"],
        [
            [
                row.name,
                row.kind,
                row.weights,
                row.density,
                row.how,
                "" if row.microseconds is None else f"{row.microseconds:.0f}",
            ]
            for row in table
        ],
    )
