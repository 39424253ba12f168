"""The `method:` block of a recipe: the fields of the method that it names, checked by that method's own types."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from autosparse.common.words import did_you_mean, few
from autosparse.recipes.errors import Problems, lines_of

DENSE = "dense"
UNSET: Any = object()  # a value that is not passed on


def method_names() -> list[str]:
    """What `method.name` may be."""
    import autosparse

    return [DENSE, *autosparse.list_methods()]


def field_names(name: str) -> list[str]:
    """The fields of a method."""
    return [] if name == DENSE else list(fields_model(name).model_fields)


def check_method(block: Mapping[str, Any]) -> dict[str, Any]:
    """The block with its values in their right types; Problems list every mistake."""
    fields = dict(block)
    name = fields.pop("name", None)
    names = method_names()
    if not isinstance(name, str):
        raise Problems([f"method.name: {'missing' if name is None else repr(name)}; give one of {', '.join(names)}"])
    if name not in names:
        raise Problems(
            [f"method.name: there is no method {name!r}{did_you_mean(name, names, ';')} Methods: {', '.join(names)}"]
        )
    allowed = field_names(name)
    lines = [_foreign(name, field, allowed) for field in fields if field not in allowed]
    if name != DENSE:
        model = fields_model(name)
        values = {field: _switch(value, model, field) for field, value in fields.items() if field in allowed}
        try:
            checked = model.model_validate({field: value for field, value in values.items() if value is not UNSET})
        except ValidationError as error:
            lines += lines_of(error, model, "method")
        else:
            fields = checked.model_dump(mode="json", exclude_unset=True)
            if not lines:
                build_method({"name": name, **fields})
    if lines:
        raise Problems(lines)
    return {"name": name, **fields}


def build_method(block: Mapping[str, Any], reference: Any = None) -> Any:
    """The method of a recipe's `method` block; `reference` are the dense losses that auto-tuning or a loss budget needs."""
    import autosparse
    from autosparse.methods import METHODS

    fields = dict(block)
    name = fields.pop("name")
    if reference is not None and isinstance(fields.get("autotune"), Mapping):
        fields["autotune"] = {**fields["autotune"], "reference": reference}
    elif reference is not None and fields.get("max_loss_increase") is not None:
        fields["reference"] = reference
    hints = typing.get_type_hints(METHODS[name])
    place = "method"
    try:
        for field, value in fields.items():
            nested = _nested(hints[field])
            if nested and isinstance(value, Mapping):
                place = f"method.{field}"
                fields[field] = nested(**value)
            elif isinstance(value, list):
                fields[field] = tuple(value)
        place = "method"
        return autosparse.method(name, **fields)
    except (ValueError, TypeError) as error:
        raise Problems([f"{place}: {error}"]) from error


def complete_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """The block with every field of its method that has a value, so that other defaults do not change what it means."""
    if block["name"] == DENSE:
        return dict(block)
    method = build_method(block)
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return check_method({**{field: value for field, value in values.items() if _is_plain(value)}, **block})


def of_older_version(block: Mapping[str, Any]) -> dict[str, Any]:
    """The block of a run's folder with the defaults of the version that wrote it: those of 0.1 have no `alpha_per`."""
    if block.get("name") != "autosparse" or "alpha_per" in block:
        return dict(block)
    return {"preset": "v0.1", **block}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


@functools.cache
def fields_model(name: str) -> type[BaseModel]:
    """A pydantic model with the fields of a method."""
    from autosparse.methods import METHODS

    return _model_of(METHODS[name])


def _model_of(cls: type) -> type[BaseModel]:
    hints = typing.get_type_hints(cls)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        nested = _nested(hints[field.name])
        kind = _model_of(nested) | None if nested else hints[field.name]
        # defaults stay the method's own: an unset field is not passed on
        factory = field.default_factory
        fields[field.name] = (kind, field.default if factory is dataclasses.MISSING else Field(default_factory=factory))
    config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return create_model(cls.__name__, __config__=config, **fields)


def _nested(hint: Any) -> type | None:
    parts = typing.get_args(hint) or (hint,)
    return next((part for part in parts if isinstance(part, type) and dataclasses.is_dataclass(part)), None)


def _switch(value: Any, model: type[BaseModel], field: str) -> Any:
    """`autotune: true` is a block of defaults, `false` is none; null where that is the default says nothing."""
    if value is None:
        return UNSET if model.model_fields[field].default is None else None
    inner = [part for part in typing.get_args(model.model_fields[field].annotation) if hasattr(part, "model_fields")]
    if not inner or not isinstance(value, bool):
        return value
    first = next(iter(inner[0].model_fields.items()))
    return {first[0]: first[1].default} if value else UNSET


def _foreign(name: str, field: str, fields: list[str]) -> str:
    if name == DENSE:
        return f"method.{field}: dense has no fields; leave it out or name a method"
    others = [other for other in method_names() if other not in (DENSE, name) and field in field_names(other)]
    belongs = f"; it belongs to {few(others, 4)}." if others else ""
    hint = belongs or did_you_mean(field, fields, ".")
    return f"method.{field}: {name} has no such field{hint} Its fields: {', '.join(fields)}"
