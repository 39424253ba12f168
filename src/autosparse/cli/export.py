"""`autosparse export`: a finished run's model as a file, or folder, that others load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor, nn

    from autosparse.recipes.recipe import Recipe
    from autosparse.training.folder import Folder

NAMES = {"safetensors": "model.sparse.safetensors", "torch": "model.pt", "onnx": "model.onnx", "hub": "hub"}
TOKENIZER = "tokenizer.json"
SAMPLES = 8  # real inputs that ONNX is compared on
HELP = """Export a finished run for others to load: safetensors (sparse and small), torch, onnx, or hub (Hugging Face).

Examples:

  autosparse export runs/digits

  autosparse export runs/digits --dtype fp16 --out digits.safetensors

  autosparse export runs/digits --format onnx

  autosparse export runs/digits --format hub --out digits-sparse
"""


@dataclass(frozen=True)
class Finished:
    """A finished run: its folder, its recipe, and its model with everything that builds it again."""

    folder: Folder
    recipe: Recipe
    arguments: dict[str, Any]
    model: nn.Module


def run(
    folder: Path = typer.Argument(metavar="RUN", help="Folder of a finished run, such as runs/digits."),
    kind: str = typer.Option("safetensors", "--format", help="safetensors, torch, onnx or hub."),
    out: Path | None = typer.Option(None, help="File to write, a folder for hub; RUN/export/... by default."),
    force: bool = typer.Option(False, "--force", help="Replace what is there."),
    dtype: str | None = typer.Option(None, help="fp32, fp16 or bf16: precision of the weights; the run's own by default."),
) -> None:
    if kind not in NAMES:
        raise ValueError(f"--format {kind} is not known; give {', '.join(NAMES)}")
    if kind == "onnx" and dtype not in (None, "fp32"):
        raise ValueError(f"--dtype {dtype} does not go with --format onnx, which computes in fp32")

    from autosparse.export.states import precision

    precision(dtype)
    target = out or folder / "export" / NAMES[kind]
    finished = open_finished(folder)
    if kind == "onnx":
        notes = write_onnx(finished, target, force)
    else:
        notes = {"safetensors": write_sparse, "torch": write_torch, "hub": write_hub}[kind](finished, target, force, dtype)
    size = sum(file.stat().st_size for file in target.iterdir()) if target.is_dir() else target.stat().st_size
    dense = finished.folder.model.stat().st_size
    typer.echo(f"{target}: {size:,} bytes, {size / dense:.1%} of the dense {finished.folder.model.name} ({dense:,} bytes)")
    for note in notes:
        typer.echo(f"  {note}")


run.__doc__ = HELP


def open_finished(path: Path) -> Finished:
    """The run in a folder, its model in evaluation mode; the error for any but a finished one says what to do."""
    from autosparse.recipes.loading import load_recipe
    from autosparse.training.folder import Folder

    folder = Folder(path)
    check_finished(folder)
    recipe = load_recipe(folder.recipe)
    arguments = model_arguments(folder, recipe)
    return Finished(folder, recipe, arguments, load_model(folder, recipe, arguments))


def check_finished(folder: Folder) -> None:
    from autosparse.training.folder import read_json

    path = folder.path
    if not path.is_dir():
        raise ValueError(f"there is no run in {path}; give the folder of one, such as runs/digits")
    if not any(path.iterdir()):
        raise ValueError(f"{path} is empty: train a model first with `autosparse train --out {path}`")
    if not folder.recipe.is_file() or not folder.info.is_file():
        raise ValueError(f"{path} is not the folder of a run: it has no {folder.recipe.name} and {folder.info.name}")
    status = read_json(folder.info).get("status")
    if status != "done" or not folder.model.is_file():
        what = {"running": "is still being trained, or was killed", "stopped": "was stopped", "failed": "failed"}
        raise ValueError(
            f"the run in {path} {what.get(str(status), 'is not complete')}: let it finish, or go on with "
            f"`autosparse train --resume --out {path}`, then export it"
        )


def model_arguments(folder: Folder, recipe: Recipe) -> dict[str, Any]:
    """All arguments of the run's model; a translation model's vocabulary comes from the run's own tokenizer."""
    from autosparse.data import TranslationData
    from autosparse.training import build

    if not isinstance(recipe.data, TranslationData):
        return build.model_arguments(recipe.model, None, None)
    from autosparse.data.tokenizer import PADDING_ID, read_tokenizer

    vocabulary = read_tokenizer(folder.path / TOKENIZER).get_vocab_size()
    return build.model_arguments(recipe.model, vocabulary, PADDING_ID)


def load_model(folder: Folder, recipe: Recipe, arguments: dict[str, Any]) -> nn.Module:
    import safetensors.torch

    from autosparse.training import build

    model = build.build_named(recipe.model.name, arguments)
    try:
        safetensors.torch.load_model(model, str(folder.model))
    except (RuntimeError, safetensors.SafetensorError) as error:
        message = str(error).splitlines()[0]
        raise ValueError(f"{folder.model} does not hold the weights of this recipe's model: {message}") from error
    return model.eval()


def write_sparse(finished: Finished, target: Path, force: bool, dtype: str | None) -> list[str]:
    from autosparse.export import load_sparse, save_sparse

    save_sparse(finished.model, target, dtype=dtype, force=force)
    load_sparse(target, finished.model)
    return ["read back and checked; load it with autosparse.load_sparse, or without autosparse: docs/format.md"]


def write_torch(finished: Finished, target: Path, force: bool, dtype: str | None) -> list[str]:
    from autosparse.export import save_torch

    save_torch(finished.model, target, dtype=dtype, force=force)
    return [f"load it with model.load_state_dict(torch.load({target.name!r}, weights_only=True)); autosparse is not needed"]


def write_hub(finished: Finished, target: Path, force: bool, dtype: str | None) -> list[str]:
    from autosparse.export import SparseModel, read_facts

    name = finished.recipe.model.name
    hub = SparseModel.of(finished.model, name, finished.arguments)
    hub.file_dtype, hub.facts = dtype, read_facts(finished.folder.path)
    tokenizer = finished.folder.path / TOKENIZER
    hub.extra_files = [tokenizer] if tokenizer.is_file() else []
    hub.save_pretrained(target, force=force)
    own = ", model=your_model" if ":" in name else ""
    return [f"from autosparse.export import SparseModel; model = SparseModel.from_pretrained({str(target)!r}{own})"]


def write_onnx(finished: Finished, target: Path, force: bool) -> list[str]:
    from autosparse.common.files import refuse_existing
    from autosparse.data import TranslationData
    from autosparse.export import save_onnx

    refuse_existing(target, force)  # before the data is opened
    inputs = real_inputs(finished)
    if isinstance(finished.recipe.data, TranslationData):
        names, dynamic = ("source", "target"), [{0: "batch", 1: "source_length"}, {0: "batch", 1: "target_length"}]
        difference = save_onnx(finished.model, target, inputs, names=names, dynamic=dynamic, force=force)
    else:
        difference = save_onnx(finished.model, target, inputs, names=("images",), force=force)
    return [
        f"within {difference:.1e} of torch's outputs in onnxruntime, on {len(inputs[0])} real inputs; takes any batch size",
        "zeros are stored and computed as numbers in ONNX: this file is for reach, not for size",
    ]


def real_inputs(finished: Finished) -> tuple[Tensor, ...]:
    """The first test samples of the run's data."""
    from autosparse.training.evaluate import held_out_data

    inputs, _ = next(iter(held_out_data(finished.folder, finished.recipe).test.epoch(0)))
    return tuple(each[:SAMPLES] for each in inputs)
