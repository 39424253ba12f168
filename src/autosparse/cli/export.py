"""Export a finished run: safetensors (sparse and small), torch, onnx, hub (Hugging Face), or deployed (to serve here).

Examples:

  autosparse export runs/digits

  autosparse export runs/digits --dtype float16 --out digits.safetensors

  autosparse export runs/digits --dtype int8

  autosparse export runs/digits --format onnx

  autosparse export runs/digits --format onnx --dtype int8

  autosparse export runs/digits --format hub --out digits-sparse

  autosparse export runs/digits --format deployed --dtype int8 --out digits-serving
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autosparse.cli.options import ALLOW_CODE

if TYPE_CHECKING:
    from torch import Tensor

    from autosparse.training.finished import Finished

# How each format is named by default, and the precisions that it can hold.
FORMATS = {
    "safetensors": ("model.sparse.safetensors", ("float32", "bfloat16", "float16", "int8")),
    "torch": ("model.pt", ("float32", "bfloat16", "float16")),
    "onnx": ("model.onnx", ("float32", "int8")),
    "hub": ("hub", ("float32", "bfloat16", "float16", "int8")),
    "deployed": ("deployed", ("float32", "bfloat16", "int8")),
}
SAMPLES = 8  # real inputs that ONNX is compared on


def run(
    folder: Path = typer.Argument(metavar="RUN", help="Folder of a finished run, such as runs/digits."),
    kind: str = typer.Option("safetensors", "--format", help="safetensors, torch, onnx, hub or deployed."),
    out: Path | None = typer.Option(None, help="File to write, a folder for hub and deployed; RUN/export/... by default."),
    force: bool = typer.Option(False, "--force", help="Replace what is there."),
    dtype: str | None = typer.Option(
        None, help="float32, bfloat16, float16 or int8 for the weights; the run's own by default."
    ),
    samples: int = typer.Option(
        512, "--calibration-samples", min=1, help="Training samples that find the ranges of int8, for onnx and deployed."
    ),
    threads: int = typer.Option(1, min=1, help="Threads to serve with, for deployed."),
    allow_code: list[str] = ALLOW_CODE,
) -> None:
    from autosparse.common.precisions import precision_name

    if kind not in FORMATS:
        raise ValueError(f"--format {kind} is not known; give {', '.join(FORMATS)}")
    usual_name, dtypes = FORMATS[kind]
    dtype = None if dtype is None else precision_name(dtype, "--dtype")
    if dtype is not None and dtype not in dtypes:
        *first, last = dtypes
        raise ValueError(f"--dtype {dtype} does not go with --format {kind}: give {', '.join(first)} or {last}")

    from autosparse.common.files import refuse_unwritable
    from autosparse.training.finished import open_finished
    from autosparse.training.folder import RunFolder

    target = out or folder / "export" / usual_name
    RunFolder(folder).check_finished()
    refuse_unwritable(target)
    finished = open_finished(folder)
    if kind == "onnx":
        notes = write_onnx(finished, target, force, samples if dtype == "int8" else None)
    elif kind == "deployed":
        notes = write_deployed(finished, target, force, dtype or "float32", threads, samples)
    else:
        notes = {"safetensors": write_sparse, "torch": write_torch, "hub": write_hub}[kind](finished, target, force, dtype)
    size = sum(file.stat().st_size for file in target.iterdir()) if target.is_dir() else target.stat().st_size
    dense = finished.folder.model.stat().st_size
    typer.echo(f"{target}: {size:,} bytes, {size / dense:.1%} of the dense {finished.folder.model.name} ({dense:,} bytes)")
    for note in notes:
        typer.echo(f"  {note}")


def write_sparse(finished: Finished, target: Path, force: bool, dtype: str | None) -> list[str]:
    from autosparse.export import load_sparse, save_sparse

    save_sparse(finished.model, target, dtype=dtype, force=force)
    load_sparse(target, finished.model)
    return ["read back and checked; load it with autosparse.load_sparse, or without autosparse: `autosparse docs format`"]


def write_torch(finished: Finished, target: Path, force: bool, dtype: str | None) -> list[str]:
    from autosparse.export import save_torch

    save_torch(finished.model, target, dtype=dtype, force=force)
    return [f"load it with model.load_state_dict(torch.load({target.name!r}, weights_only=True)); autosparse is not needed"]


def write_hub(finished: Finished, target: Path, force: bool, dtype: str | None) -> list[str]:
    from autosparse.export import SparseModel, read_facts

    name = finished.recipe.model.name
    hub = SparseModel.of(finished.model, name, finished.arguments)
    hub.file_dtype, hub.facts = dtype, read_facts(finished.folder.path)
    tokenizer = finished.folder.tokenizer
    hub.extra_files = [tokenizer] if tokenizer.is_file() else []
    hub.save_pretrained(target, force=force)
    argument = ", model=your_model" if ":" in name else ""
    return [f"from autosparse.export import SparseModel; model = SparseModel.from_pretrained({str(target)!r}{argument})"]


def write_deployed(finished: Finished, target: Path, force: bool, precision: str, threads: int, samples: int) -> list[str]:
    from autosparse.common.files import whole_folder, write_json
    from autosparse.training.deployed import deploy_finished

    with whole_folder(target, force) as unfinished:  # refused before anything is measured
        example = tuple(tensor[:1] for tensor in real_inputs(finished))
        deployed = deploy_finished(finished, example, precision, threads, samples)
        deployed.save(unfinished, force=True)
        write_json(unfinished / "config.json", {"model": finished.recipe.model.name, "arguments": finished.arguments})
    return [
        f"{precision} on {threads} thread{'s' * (threads > 1)}, measured on this processor; elsewhere it is measured again",
        f"load it with autosparse.load_deployed({str(target)!r}, model), or serve it with examples/serve.py",
        *deployed.notes,
    ]


def write_onnx(finished: Finished, target: Path, force: bool, samples: int | None) -> list[str]:
    from autosparse.common.files import refuse_existing
    from autosparse.data import TranslationData
    from autosparse.export import save_onnx, save_onnx_int8
    from autosparse.training.finished import calibration_batches

    refuse_existing(target, force)  # before the data is opened
    inputs = real_inputs(finished)
    translates = isinstance(finished.recipe.data, TranslationData)
    names = ("source", "target") if translates else ("images",)
    dynamic = [{0: "batch", 1: "source_length"}, {0: "batch", 1: "target_length"}] if translates else None
    if samples is None:
        difference = save_onnx(finished.model, target, inputs, names=names, dynamic=dynamic, force=force)
        return [
            f"within {difference:.1e} of torch's outputs in onnxruntime, on {len(inputs[0])} real inputs; takes any batch size",
            "zeros are stored and computed as numbers in ONNX: this file is for reach, not for size",
        ]
    batches = calibration_batches(finished, samples)
    difference = save_onnx_int8(finished.model, target, inputs, batches, names=names, dynamic=dynamic, force=force)
    return [
        f"int8 weights per channel, ranges from {sum(len(batch[0]) for batch in batches)} training samples; any batch size",
        f"differs from torch's float32 outputs by {difference:.1%} (root mean square), on {len(inputs[0])} real inputs",
        "zeros are stored and computed as numbers in ONNX: this file is for reach, not for size",
    ]


def real_inputs(finished: Finished) -> tuple[Tensor, ...]:
    """The first test samples of the run's data."""
    from autosparse.training.finished import held_out_data

    inputs, _ = next(iter(held_out_data(finished.folder, finished.recipe).test.epoch(0)))
    return tuple(tensor[:SAMPLES] for tensor in inputs)
