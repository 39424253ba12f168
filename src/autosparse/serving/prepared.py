"""A deployed model as a folder: its weights as a sparse file, and in JSON all that was measured. Nothing in it is executed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from autosparse.common.files import read_json, whole_folder, write_json
from autosparse.common.processor import cpu_model
from autosparse.common.warnings import warn
from autosparse.export.format import write_layout
from autosparse.export.reader import SparseFile
from autosparse.export.writer import write_sparse
from autosparse.kernels import library
from autosparse.serving.attempts import Route
from autosparse.serving.capture import one_line
from autosparse.serving.choices import ByteChoice, Choice, LinearChoice, RegionChoice
from autosparse.serving.deployed import Deployed, Prepared
from autosparse.serving.deployment import check, prepare
from autosparse.serving.example import Example
from autosparse.serving.example_spec import rebuild
from autosparse.serving.operations import Variant
from autosparse.serving.quantized.calibration import Calibration, ForgottenError, Quantization
from autosparse.serving.quantized.memory import PlainRows
from autosparse.serving.quantized.operations import ByteVariant

WEIGHTS, DESCRIPTION = "model.safetensors", "deployment.json"
VERSION = 1
LARGEST_FILE = 2**24  # bytes

Text = Annotated[str, Field(max_length=1024)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
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


class SavedBytes(_Strict):
    """A `ByteChoice`: of a variant the output channels that share their quads, and the chunks of its tile."""

    layers: list[Text]
    images: Count
    blocks: dict[Text, tuple[Count, Count]]


class SavedLinear(_Strict):
    """A `LinearChoice`; tiles where there are any."""

    layer: Text
    ways: dict[Text, Text]
    tiles: dict[Text, Count] = Field(default_factory=dict)


class SavedQuantization(_Strict):
    """What calibration found out, and the layers that stay in float32."""

    ranges: dict[Text, tuple[Finite, Finite]]
    errors: dict[Text, Seconds]
    corrections: dict[Text, list[Finite]] = Field(default_factory=dict)  # of biases
    refused: list[Text]
    difference: Seconds
    keep: list[Text]


class Description(_Strict):
    """The content of deployment.json."""

    version: Literal[1]
    precision: Literal["float32", "bfloat16", "int8"]
    threads: Annotated[int, Field(ge=1, le=4096)]
    processor: Processor
    route: Literal["graph", "parts", "linears", "torch"]
    notes: list[Annotated[str, Field(max_length=100_000)]]
    choices: list[SavedRegion | SavedBytes | SavedLinear]
    quantization: SavedQuantization | None = None  # of int8
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
    route = prepared.served.route
    with whole_folder(Path(folder), force) as unfinished:
        _write_weights(prepared.served.state, unfinished / WEIGHTS)
        content = {
            "version": VERSION,
            "precision": prepared.precision,
            "threads": prepared.threads,
            "processor": _measured_on(deployed).model_dump(),
            "route": route.name,
            "notes": route.notes,
            "choices": [_saved(choice) for choice in route.choices or []],
            "example": prepared.example,
            "weights": _fingerprint(SparseFile(unfinished / WEIGHTS)),
        }
        if prepared.precision == "int8":
            content["quantization"] = _quantization(prepared)
        write_json(unfinished / DESCRIPTION, content | {"sha256": _seal(content)})


def _write_weights(state: Mapping[str, Tensor | PlainRows], path: Path) -> None:
    """The model's own tensors; weights that are served in int8 are rounded, so that their integers are the served ones."""
    rounded = {id(value): value.weight() for value in state.values() if isinstance(value, PlainRows)}
    integers = {name for name, value in state.items() if isinstance(value, PlainRows) and value.by_row}
    tensors = {name: rounded[id(value)] if isinstance(value, PlainRows) else value for name, value in state.items()}
    write_sparse(tensors, path, lambda name: torch.int8 if name in integers else None)


def _quantization(prepared: Prepared) -> dict[str, Any]:
    found = prepared.served.route.calibration
    ranges = {name: list(limits) for name, limits in found.ranges.items()}
    errors = {name: error for name, error in found.errors.items() if math.isfinite(error)}
    facts = {"ranges": ranges, "errors": errors, "corrections": found.corrections, "refused": found.refused}
    return facts | {"difference": found.difference, "keep": sorted(prepared.keep)}


def load_deployed(
    folder: str | os.PathLike[str], model: nn.Module, *, example_input: Any = None, threads: int | None = None
) -> Deployed:
    """A deployed model that `Deployed.save` wrote, without measuring again; `model` is filled with the saved weights.

    int8 needs no calibration again: ranges come from the folder, and the integers are the saved ones. On another processor,
    or with another number of threads, everything is measured again, and a note says so. An example is needed only if the
    first one held objects other than tensors and plain values. Damaged or hostile files are a ValueError.
    """
    path = Path(folder)
    description, file = _read(path / DESCRIPTION), SparseFile(path / WEIGHTS)
    try:
        if _fingerprint(file) != description.weights:
            raise ValueError(f"it belongs to other weights than those of {WEIGHTS}")
        example = rebuild(description.example) if example_input is None else Example.of(example_input)
        choices = [_choice(saved) for saved in description.choices]
        remembered = Route(description.route, choices, description.notes, _calibration(description))
    except ValueError as error:
        raise ValueError(f"{path / DESCRIPTION} is refused: {error}") from None
    count = description.threads if threads is None else threads
    check(model, example, count)
    file.check_fits(model)
    model.load_state_dict(file.state())
    try:
        return _prepared(model, example, count, remembered, _changed(description, count), _narrow(description))
    except ForgottenError as error:
        raise ValueError(f"{path / DESCRIPTION} is refused: it belongs to another model ({error})") from None
    except Warning:
        raise
    except Exception as error:
        if example_input is not None:
            raise
        raise ValueError(
            f"{path / DESCRIPTION} is refused: an example as it describes does not pass through this model "
            f"({one_line(error)}); give example_input"
        ) from error


def _prepared(
    model: nn.Module,
    example: Example,
    threads: int,
    remembered: Route,
    changed: str | None,
    quantization: Quantization | None,
) -> Deployed:
    """With the remembered choices where they fit, else with new ones and a note; ranges stay as they were calibrated."""
    if changed is None:
        try:
            return prepare(model, example, threads, remembered, quantization)
        except ForgottenError as error:
            changed = f"what was saved does not fit this model ({error})"
    again = replace(remembered, choices=None) if remembered.calibration.known else None
    deployed = prepare(model, example, threads, again, quantization)
    deployed.notes.append(f"measured again: {changed}")
    warn(f"load_deployed: {deployed.notes[-1]}")
    return deployed


def _narrow(description: Description) -> Quantization | None:
    """What is computed in fewer bits; there are no batches to calibrate on."""
    if description.precision == "float32":
        return None
    keep = [] if description.quantization is None else description.quantization.keep
    return Quantization([], description.precision, keep=frozenset(keep))


def _calibration(description: Description) -> Calibration:
    saved = description.quantization
    if (saved is None) != (description.precision != "int8"):
        raise ValueError("a quantization belongs to int8, and int8 needs one")
    if saved is None:
        return Calibration()
    for name, (low, high) in saved.ranges.items():
        if low > high:
            raise ValueError(f"the range of {name[:80]} is empty")
    return Calibration(
        dict(saved.ranges), dict(saved.errors), dict(saved.corrections), list(saved.refused), saved.difference, known=True
    )


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
    version = content.get("version", VERSION)
    if version != VERSION:
        raise ValueError(f"{path} is refused: its version is {str(version)[:40]!r}, this release reads {VERSION}")
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
        ways = {str(tokens): way for tokens, way in choice.ways.items()}
        return {"layer": choice.layer, "ways": ways} | ({"tiles": choice.tiles} if choice.tiles else {})
    if isinstance(choice, ByteChoice):
        blocks = {str(index): [v.block, v.tile_chunks] for index, v in choice.variants.items()}
        return {"layers": list(choice.layers), "images": choice.images, "blocks": blocks}
    variants = {str(index): [v.sparse, v.tile_vectors, v.aligned] for index, v in choice.variants.items()}
    return {"layers": list(choice.layers), "images": choice.images, "variants": variants, "seconds": list(choice.seconds)}


def _choice(saved: SavedRegion | SavedBytes | SavedLinear) -> Choice:
    if isinstance(saved, SavedLinear):
        return LinearChoice(saved.layer, {_number(tokens): way for tokens, way in saved.ways.items()}, dict(saved.tiles))
    if isinstance(saved, SavedBytes):
        blocks = {_number(index): ByteVariant(*variant) for index, variant in saved.blocks.items()}
        return ByteChoice(tuple(saved.layers), saved.images, blocks)
    variants = {_number(index): Variant(*variant) for index, variant in saved.variants.items()}
    return RegionChoice(tuple(saved.layers), saved.images, variants, saved.seconds)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise ValueError(f"{text[:40]!r} is not a number")
    return int(text)
