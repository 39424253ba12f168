"""Score a trained run: accuracy for images, BLEU (sacrebleu, beam search) for translation.

The figure of the finished model on its test split is written into the run's result.json.

Examples:

  autosparse eval runs/digits

  autosparse eval runs/multi30k-transformer --beam 4

  autosparse eval runs/multi30k-transformer --split test_2017_flickr

  autosparse eval runs/cifar10-resnet20 --checkpoint best --data DIR --json

  autosparse eval runs/cifar10-resnet20 --deployed --precision int8
"""

from pathlib import Path
from typing import Any

import typer

from autosparse.cli.options import ALLOW_CODE
from autosparse.cli.output import begin, print_json


def run(
    folder: Path = typer.Argument(metavar="RUN", help="Folder of a run, such as runs/digits."),
    beam: int = typer.Option(4, min=1, help="Translations kept in view by beam search; 1 is greedy."),
    split: str = typer.Option("test", help="test or validation of the recipe, or another split of the same data."),
    data: str | None = typer.Option(None, "--data", help="Where the data lies now, instead of the recipe's path or hub name."),
    checkpoint: str | None = typer.Option(None, help="best or last, instead of the finished model."),
    deployed: bool = typer.Option(False, "--deployed", help="Deploy the model, and show it beside the plain one in float32."),
    precision: str | None = typer.Option(
        None, help="Of the deployed model: float32, bfloat16, int8 or auto; by default that of target_latency."
    ),
    threads: int = typer.Option(1, min=1, help="Threads of the deployed model."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    allow_code: list[str] = ALLOW_CODE,
) -> None:
    begin(f"scoring {folder}")
    from autosparse.training.evaluate import evaluate

    if precision is not None and not deployed:
        raise ValueError("--precision is that of the deployed model: give --deployed with it")
    if deployed:
        if checkpoint is not None:
            raise ValueError("--deployed takes the finished model: leave --checkpoint out")
        from autosparse.training.deployed import evaluate_deployed

        figures = evaluate_deployed(folder, precision=precision, threads=threads, beam=beam, split=split, data_path=data)
        text = as_table(figures)
    else:
        figures = evaluate(folder, beam=beam, split=split, data_path=data, checkpoint=checkpoint)
        text = as_text(figures)
    print_json(figures) if as_json else typer.echo(text)


def as_table(figures: dict[str, Any]) -> str:
    """Plain and deployed beside each other."""
    threads = f"{figures['threads']} thread{'s' if figures['threads'] > 1 else ''}"
    lines = [f"{figures['name']}: {figures['method']}, {figures['split']} split of {figures['samples']:,} samples, {threads}"]
    lines.append(f"  {'':<15} {'plain float32':>15} {'deployed ' + figures['precision']:>20}")
    rows = {"accuracy": "{:.2%}", "bleu": "{:.2f}", "token_accuracy": "{:.2%}", "loss": "{:.4f}", "milliseconds": "{:.3f}"}
    for name, form in rows.items():
        if name in figures["plain"]:
            plain, deployed = (form.format(figures[key][name]) for key in ("plain", "deployed"))
            label = "ms per sample" if name == "milliseconds" else name.replace("_", " ")
            lines.append(f"  {label:<15} {plain:>15} {deployed:>20}")
    if "target_latency" in figures:
        asked, measured = figures["target_latency"], figures["deployed"]["milliseconds"]
        lines.append(f"  target_latency  {asked:g} ms asked, {measured:.3f} ms measured: {measured / asked - 1:+.1%}")
    return "\n".join(lines + [f"  note: {note}" for note in figures["notes"]])


def as_text(figures: dict[str, Any]) -> str:
    """The figures as people read them."""
    model = f"{figures['name']}: {figures['method']}" + (
        f", checkpoint {figures['checkpoint']}" if figures["checkpoint"] else ""
    )
    lines = [f"{model}, {figures['split']} split of {figures['samples']:,} samples"]
    if "bleu" in figures:
        lines.append(f"  BLEU            {figures['bleu']:.2f}   ({figures['bleu_signature']})")
        lines.append(f"  token accuracy  {figures['token_accuracy']:.2%}")
    else:
        lines.append(f"  accuracy        {figures['accuracy']:.2%}")
    lines.append(f"  loss            {figures['loss']:.4f}")
    if figures["recorded"]:
        lines.append(f"  written to      {Path(figures['run']) / 'result.json'}")
    return "\n".join(lines)
