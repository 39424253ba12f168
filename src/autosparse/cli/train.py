"""Train a recipe; with none, the embedded default: a small net on the digits, which come with the package.

Examples:

  autosparse train

  autosparse train fashion-mnist --set data.path=DIR --set method.target_sparsity=0.9

  autosparse train my-recipe.yaml --out runs/first

  autosparse train --resume --out runs/first

  torchrun --nproc-per-node 2 --max-restarts 3 -m autosparse train cifar10-resnet20 --set data.path=DIR
"""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autosparse import __version__
from autosparse.cli.options import ALLOW_CODE
from autosparse.cli.output import begin, write_page

if TYPE_CHECKING:
    from autosparse.recipes.recipe import Recipe

DEFAULT = "digits"
WIDTH = 80  # of a terminal


def run(
    recipe: str | None = typer.Argument(None, help="Name of a recipe (`autosparse recipes`) or a YAML file."),
    changes: list[str] = typer.Option([], "--set", metavar="A.B=C", help="Change a value of the recipe; repeatable."),
    out: Path | None = typer.Option(None, help="Folder of the run; runs/NAME by default. One that exists is refused."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in the folder, bit for bit."),
    start_or_resume: bool | None = typer.Option(
        None,
        "--start-or-resume/--no-start-or-resume",
        help="Start the run, or go on with it if the folder holds it already; the default under torchrun.",
        show_default=False,
    ),
    initial_weights: Path | None = typer.Option(
        None, help="Start from these weights: the folder of a finished run, a .safetensors file, or a sparse file."
    ),
    initial_zeros: bool = typer.Option(False, "--initial-zeros", help="Start with their zeros as pruned weights."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress, no summary."),
    report: bool = typer.Option(True, help="Write the HTML report at the end."),
    allow_code: list[str] = ALLOW_CODE,
) -> None:
    if not quiet and leads():
        what = f"resuming {out or recipe or DEFAULT}" if resume else f"training {recipe or DEFAULT}"
        begin(f"autosparse {__version__}: {what}")
    from autosparse.recipes.loading import load_recipe
    from autosparse.training.folder import RunFolder
    from autosparse.training.repair import is_intact
    from autosparse.training.run import train
    from autosparse.training.session import Diverged
    from autosparse.training.signals import Stopped, stop_with_parent

    stop_with_parent()
    if initial_weights is not None:
        changes = [*changes, f"initial_weights={initial_weights}"]
    if initial_zeros:
        changes = [*changes, "initial_zeros=true"]
    if start_or_resume is None:  # torchrun starts a process again after a failure, with the same words
        start_or_resume = "TORCHELASTIC_RUN_ID" in os.environ and not resume
    may_resume = resume or start_or_resume
    if recipe is None and may_resume and out is not None and (out / "recipe.yaml").exists():
        chosen = RunFolder(out).load_recipe(changes)
    else:
        chosen = load_recipe(recipe or DEFAULT, changes)
    folder = out or Path("runs") / chosen.name
    complete = may_resume and is_intact(RunFolder(folder))
    command = ["autosparse", *sys.argv[1:]]
    try:
        result = train(chosen, folder, resume=resume, start_or_resume=start_or_resume, quiet=quiet, command=command)
    except Stopped as stopped:
        typer.echo(f"{stopped}", err=True)
        raise typer.Exit(stopped.code) from None
    except Diverged as failure:
        typer.echo(f"error: {failure}", err=True)
        raise typer.Exit(1) from None
    if leads() and complete and not quiet:
        typer.echo(f"the run in {folder} is complete already")
    if leads() and report:
        write_page([folder], folder / "report")
    if leads() and not quiet:
        typer.echo(summary(chosen, result, folder))


def leads() -> bool:
    """Whether this is the process that writes."""
    return os.environ.get("RANK", "0") == "0"


def summary(recipe: Recipe, result: dict[str, Any], folder: Path) -> str:
    """What a newcomer wants to know at the end."""
    from autosparse.common.words import counted, duration

    what = "token accuracy" if recipe.data.kind == "translation" else "accuracy"
    epochs = counted(result["epochs"], "epoch")
    lines = ["", f"{recipe.name}: {recipe.method['name']}, {epochs} in {duration(result['seconds'])}", ""]
    accuracy = f"  {what:<15} {result['accuracy']:.2%}"
    if result["base_accuracy"] is not None:
        gap = 100 * (result["accuracy"] - result["base_accuracy"])
        accuracy += f"   (dense run of the same length {result['base_accuracy']:.2%}: {gap:+.2f} points)"
    lines.append(accuracy)
    if not recipe.dense:
        lines += [
            f"  {'sparsity':<15} {result['sparsity']:.2%}   of the weights in {len(result['layers'])} layers are zero",
            f"  {'Train F':<15} {result['train_fraction']:.3f}    multiply-adds spent in training, of a dense run's",
            f"  {'Test F':<15} {result['test_fraction']:.3f}    multiply-adds of one prediction, of the dense model's",
        ]
        lines += speed_lines(result)
    lines = [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 27) or [""]]
    lines += ["", f"  {'model':<15} {folder / 'model.safetensors'}"]
    page = folder / "report" / "report.html"
    if page.exists():
        lines.append(f"  {'report':<15} {page}")
    lines += ["", "What to try next", *next_steps(recipe, folder)]
    return "\n".join(lines)


def speed_lines(result: dict[str, Any]) -> list[str]:
    """Whether the zeros saved time, in the whole run and at its end, and which layers skipped them."""
    from autosparse.common.words import few, gain_words

    speed, gain = result.get("speed"), result.get("gain")
    if not speed:
        return []
    ours, dense = speed["milliseconds"], speed["dense_milliseconds"]
    slower = "" if dense >= ours else ": dense would have been faster"
    last = f"{ours:.3g} ms per step at the end, dense training about {dense:.3g} ms{slower}"
    lines = [f"  {'speed':<15} {dense / ours:.2f}x    {last}"]
    if gain:
        lines.insert(0, f"  {'whole run':<15} {gain['ratio']:.2f}x    {gain_words(gain)}")
    skipping = [layer["name"] for layer in result["layers"] if not layer["computed"].startswith("dense")]
    reasons = ", ".join(f"{count} {reason}" for reason, count in speed["reasons"].items())
    lines.append(
        f"  {'':<15} {len(skipping)} of {len(result['layers'])} layers skip zeros" + (f": {few(skipping)}" if skipping else "")
    )
    return lines + ([f"  {'':<15} dense: {reasons}"] if reasons else [])


def next_steps(recipe: Recipe, folder: Path) -> list[str]:
    steps = []
    if recipe.name == DEFAULT:
        steps += [
            ("autosparse train digits-autotune", "alpha found from a few dense epochs: Algorithm 1 of the paper"),
            ("autosparse train --set method.target_sparsity=0.95 --out runs/95", "more zeros"),
            ("autosparse compare digits --methods autosparse,str,rigl --sparsity 0.8", "methods side by side"),
            ("autosparse recipes", "CIFAR-10, Fashion-MNIST, ImageNet, translation"),
            ("autosparse docs data", "your own data"),
        ]
    else:
        steps += [
            (f"autosparse eval {folder}", "score the saved model again"),
            (f"autosparse report {folder}", "the page with figures"),
        ]
    steps.append(("autosparse docs get-started", "three lines for your own training loop"))
    return [line for command, why in steps for line in (f"  {command}", f"      {why}")]
