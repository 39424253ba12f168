"""What is wrong with a recipe: every mistake on a line of its own, with its place, what was given and what is allowed."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from autosparse.common.words import did_you_mean


class Problems(ValueError):
    """Several mistakes at once; `lines` are complete, each beginning with its dotted place."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


def lines_of(error: ValidationError, model: type[BaseModel], place: str = "") -> list[str]:
    """A readable line for every error; `place` is where the model stands in the recipe."""
    lines: list[str] = []
    for detail in error.errors():
        inner = detail.get("ctx", {}).get("error")
        lines += inner.lines if isinstance(inner, Problems) else [_line(dict(detail), model, place)]
    return lines


def _line(error: dict[str, Any], model: type[BaseModel], place: str) -> str:
    steps, owner = _resolve(error["loc"], model)
    path = ".".join([*([place] if place else []), *steps])
    value, kind = error["input"], error["type"]
    allowed = list(owner.model_fields) if owner else []
    if kind == "extra_forbidden":
        otherwise = _elsewhere(steps[-1], model) or f"; allowed: {', '.join(allowed)}"
        hint = did_you_mean(steps[-1], allowed, otherwise)
        return f"{path}: unknown key{hint}"
    if kind == "missing":
        return f"{path}: missing{_described(owner, steps[-1])}"
    if kind == "union_tag_invalid":
        words = error["ctx"]["expected_tags"]
        return (
            f"{path}.{error['ctx']['discriminator'].strip(chr(39))}: {error['ctx']['tag']!r} is not allowed; allowed: {words}"
        )
    if kind == "literal_error":
        words = error["ctx"]["expected"].replace("'", "")
        hint = did_you_mean(str(value), words.replace(" or ", ", ").split(", "), ";")
        return f"{path}: {value!r} is not allowed{hint} allowed: {words}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        fields = f" with {', '.join(allowed)}" if allowed else ""
        return f"{path}: must be a block{fields}, got {value!r}"
    if kind == "value_error":
        return f"{path}: {error['ctx']['error']}" if path else str(error["ctx"]["error"])
    message = error["msg"].replace("Input should be", "must be")
    return f"{path}: {message}, got {value!r}"


def _resolve(loc: Sequence[int | str], model: type[BaseModel]) -> tuple[list[str], type[BaseModel] | None]:
    """The dotted place without pydantic's names of union members, and the block that the last step belongs to."""
    steps: list[str] = []
    owner: type[BaseModel] | None = model
    choices = [model]
    for step in loc:
        tagged = [choice for choice in choices if len(choices) > 1 and _tag(choice) == step]
        if tagged:
            choices = tagged
            continue
        owner = choices[0] if choices else None
        steps.append(str(step))
        choices = _blocks(owner.model_fields[str(step)].annotation) if owner and str(step) in owner.model_fields else []
    # an error of a whole block belongs to the block itself
    return steps, choices[0] if choices else owner


def _tag(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("kind")
    return typing.get_args(field.annotation)[0] if field else None


def _blocks(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [block for part in typing.get_args(annotation) for block in _blocks(part)]


def _elsewhere(key: str, model: type[BaseModel]) -> str:
    """ "; did you mean 'optimizer.lr'?" for a key that stands in the wrong block."""
    places = [
        f"{name}.{key}"
        for name, field in model.model_fields.items()
        if any(key in block.model_fields for block in _blocks(field.annotation))
    ]
    return f"; did you mean {' or '.join(map(repr, places))}?" if places else ""


def _described(owner: type[BaseModel] | None, key: str) -> str:
    field = owner.model_fields.get(key) if owner else None
    return f" ({field.description.rstrip('.')})" if field and field.description else ""
