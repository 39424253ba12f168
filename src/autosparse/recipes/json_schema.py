"""The JSON schema of recipe files, for editors: keys, types, allowed values and what they mean."""

from __future__ import annotations

from typing import Any

from autosparse.recipes.method_block import DENSE, fields_model, method_names
from autosparse.recipes.recipe import Recipe

_BLOCKS = ["model", "data", "method", "optimizer", "train"]


def recipe_schema() -> dict[str, Any]:
    """Looser than the loader where a file may be incomplete: a recipe that extends another says only what differs."""
    schema = Recipe.model_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    for name in method_names():
        definitions[f"method {name}"] = _method(name, definitions)
    properties = schema["properties"]
    properties["extends"] = {"type": "string", "description": "Name of a recipe, or a file beside this one, to build on."}
    properties["method"] = {
        "description": properties["method"]["description"],
        "anyOf": [{"enum": method_names()}, *({"$ref": f"#/$defs/method {name}"} for name in method_names())],
    }
    properties["model"] = {"anyOf": [{"type": "string"}, properties["model"]]}
    data = properties["data"]
    properties["data"] = {"anyOf": data["oneOf"]}  # a part of a block may fit both kinds
    one_or_more = [{"type": "string"}, {"items": {"type": "string"}, "type": "array"}, {"type": "null"}]
    for key in ("include", "exclude"):
        definitions["SparsifyBlock"]["properties"][key]["anyOf"] = one_or_more
    _loosen(schema)
    schema["anyOf"] = [{"required": ["extends"]}, {"required": _BLOCKS}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "autosparse recipe"}


def _method(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    if name == DENSE:
        schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
        text = "Trains without sparsity."
    else:
        from autosparse.methods import describe

        schema = fields_model(name).model_json_schema(ref_template="#/$defs/{model}")
        definitions.update(schema.pop("$defs", {}))
        text = describe(name).doc
        for field in schema["properties"].values():
            if "anyOf" in field and any("$ref" in kind for kind in field["anyOf"]):
                field["anyOf"].append({"type": "boolean"})
    properties = {"name": {"const": name}, **schema["properties"]}
    return {**schema, "title": f"method {name}", "description": text, "properties": properties}


def _loosen(part: Any) -> None:
    if isinstance(part, dict):
        part.pop("required", None)
        for inner in part.values():
            _loosen(inner)
    elif isinstance(part, list):
        for inner in part:
            _loosen(inner)
