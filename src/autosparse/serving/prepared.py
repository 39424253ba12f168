"""A deployed model as a folder: its weights as a sparse file, and in JSON all that was measured. Nothing in it is executed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from autosparse.common.files import read_json, whole_folder, write_json
from autosparse.common.processor import cpu_model
from autosparse.common.warnings import warn
from autosparse.export.format import write_layout
from autosparse.export.reader import SparseFile
from autosparse.export.writer import save_sparse
from autosparse.kernels import library
from autosparse.serving.attempts import Route
from autosparse.serving.capture import one_line
from autosparse.serving.choices import Choice, ForgottenError, LinearChoice, RegionChoice
from autosparse.serving.deployed import Deployed
from autosparse.serving.deployment import check, prepare
from autosparse.serving.example import Example
from autosparse.serving.example_spec import rebuild
from autosparse.serving.operations import Variant

WEIGHTS, DESCRIPTION = "model.safetensors", "deployment.json"
VERSION = 1
LARGEST_FILE = 2**24  # bytes

Text = Annotated[str, Field(max_length=1024)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Processor(_Strict):
    """What choices were measured on."""

    name: Text
    instruction_set: Text | None
    torch: Text


class SavedRegion(_Strict):
    """A `RegionChoice`: of a variant whether it is sparse, the vectors of its tile, and whether it is aligned."""

    layers: list[Text]
    images: Count
    variants: dict[Text, tuple[bool, Count, bool]]
    seconds: tuple[Seconds, Seconds]


class SavedLinear(_Strict):
    """A `LinearChoice`."""

    layer: Text
    ways: dict[Text, Text]


class Description(_Strict):
    """The content of deployment.json."""

    version: Literal[1]
    precision: Literal["float32"]
    threads: Annotated[int, Field(ge=1, le=4096)]
    processor: Processor
    route: Literal["graph", "parts", "linears", "torch"]
    notes: list[Annotated[str, Field(max_length=100_000)]]
    choices: list[SavedRegion | SavedLinear]
    example: dict[str, Any]
    weights: Text
    sha256: Text


def this_processor() -> Processor:
    """The processor, and the instruction sets that our kernels and torch's use on it."""
    return Processor(
        name=cpu_model()[:1024], instruction_set=library.instruction_set(), torch=torch.backends.cpu.get_cpu_capability()
    )


def save(deployed: Deployed, folder: str | os.PathLike[str], force: bool = False) -> None:
    """Write model.safetensors and deployment.json, both or none; a folder with files in it needs `force`."""
    prepared = deployed.prepared
    if prepared is None:
        raise ValueError("this deployed model was not made by autosparse.deploy, so nothing says how to make it again")
    served, route = prepared.served, prepared.served.route
    if served.state is None:
        raise ValueError(
            "a model in int8 or bfloat16 keeps no float32 weights: save the plain model with autosparse.save_sparse, "
            "and deploy it again"
        )
    with whole_folder(Path(folder), force) as unfinished:
        save_sparse(served.state, unfinished / WEIGHTS)
        content = {
            "version": VERSION,
            "precision": "float32",
            "threads": prepared.threads,
            "processor": _measured_on(deployed).model_dump(),
            "route": route.name,
            "notes": route.notes,
            "choices": [_saved(choice) for choice in route.choices],
            "example": prepared.example,
            "weights": _fingerprint(SparseFile(unfinished / WEIGHTS)),
        }
        write_json(unfinished / DESCRIPTION, content | {"sha256": _seal(content)})


def load_deployed(
    folder: str | os.PathLike[str], model: nn.Module, *, example_input: Any = None, threads: int | None = None
) -> Deployed:
    """A deployed model that `Deployed.save` wrote, without measuring again; `model` is filled with the saved weights.

    On another processor, or with another number of threads, it is measured again, and a note says so. An example is needed
    only if the first one held objects other than tensors and plain values. Damaged or hostile files are a ValueError.
    """
    path = Path(folder)
    description, file = _read(path / DESCRIPTION), SparseFile(path / WEIGHTS)
    try:
        if _fingerprint(file) != description.weights:
            raise ValueError(f"it belongs to other weights than those of {WEIGHTS}")
        example = rebuild(description.example) if example_input is None else Example.of(example_input)
        remembered = Route(description.route, [_choice(saved) for saved in description.choices], description.notes)
    except ValueError as error:
        raise ValueError(f"{path / DESCRIPTION} is refused: {error}") from None
    count = description.threads if threads is None else threads
    check(model, example, count)
    file.check_fits(model)
    model.load_state_dict(file.state())
    try:
        return _prepared(model, example, count, remembered, _changed(description, count))
    except Warning:
        raise
    except Exception as error:
        if example_input is not None:
            raise
        raise ValueError(
            f"{path / DESCRIPTION} is refused: an example as it describes does not pass through this model "
            f"({one_line(error)}); give example_input"
        ) from error


def _prepared(model: nn.Module, example: Example, threads: int, remembered: Route, changed: str | None) -> Deployed:
    """With the remembered choices where they fit, else with new ones and a note."""
    if changed is None:
        try:
            return prepare(model, example, threads, remembered)
        except ForgottenError as error:
            changed = f"what was saved does not fit this model ({error})"
    deployed = prepare(model, example, threads)
    deployed.notes.append(f"measured again: {changed}")
    warn(f"load_deployed: {deployed.notes[-1]}")
    return deployed


def _measured_on(deployed: Deployed) -> Processor:
    """Where its choices were measured: here, if not with other kernels."""
    assert deployed.prepared is not None
    return this_processor().model_copy(update={"instruction_set": deployed.prepared.instruction_set})


def _changed(description: Description, threads: int) -> str | None:
    """What is not as it was when the choices were measured."""
    saved, here = description.processor, this_processor()
    if saved != here:
        return f"it was saved on {_words(saved)}, and this is {_words(here)}"
    if description.threads != threads:
        return f"it was saved for {description.threads} threads, and this is for {threads}"
    return None


def _words(processor: Processor) -> str:
    return f"{processor.name} ({processor.instruction_set or 'no kernels'}, torch with {processor.torch})"


def _read(path: Path) -> Description:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: give a folder that a deployed model's save() wrote")
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} is refused: it is larger than {LARGEST_FILE:,} bytes")
    content = read_json(path)
    for key, known in (("version", VERSION), ("precision", "float32")):
        if key in content and content[key] != known:
            raise ValueError(f"{path} is refused: its {key} is {str(content[key])[:40]!r}, this release reads {known!r}")
    seal = content.get("sha256")
    if seal != _seal({key: value for key, value in content.items() if key != "sha256"}):
        raise ValueError(f"{path} is refused: it was altered or damaged (checksum)")
    try:
        return Description.model_validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path} is refused: {place[:200]}: {first['msg']}") from None


def _seal(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _fingerprint(file: SparseFile) -> str:
    """Of the table of contents, which holds the checksums of all tensors."""
    return hashlib.sha256(write_layout(file.layout).encode()).hexdigest()


def _saved(choice: Choice) -> dict[str, Any]:
    if isinstance(choice, LinearChoice):
        return {"layer": choice.layer, "ways": {str(tokens): way for tokens, way in choice.ways.items()}}
    variants = {str(index): [v.sparse, v.tile_vectors, v.aligned] for index, v in choice.variants.items()}
    return {"layers": list(choice.layers), "images": choice.images, "variants": variants, "seconds": list(choice.seconds)}


def _choice(saved: SavedRegion | SavedLinear) -> Choice:
    if isinstance(saved, SavedLinear):
        return LinearChoice(saved.layer, {_number(tokens): way for tokens, way in saved.ways.items()})
    variants = {_number(index): Variant(*variant) for index, variant in saved.variants.items()}
    return RegionChoice(tuple(saved.layers), saved.images, variants, saved.seconds)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise ValueError(f"{text[:40]!r} is not a number")
    return int(text)
