"""`--set a.b=c`: changes to a recipe before it is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosparse.common.warnings import warn
from autosparse.recipes.method_block import DENSE, field_names, method_names
from autosparse.recipes.yaml_text import read_value

# Fields with one meaning in different methods: how many zeros to end with.
_SPARSITIES = ("target_sparsity", "sparsity")


def apply(block: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The block with every override in turn; a new method.name drops the recipe's fields that the new method lacks."""
    changed = merged(block, {})
    pairs = [parse(override) for override in overrides]
    names = [value for path, value in pairs if path == ["method", "name"]]
    if names and isinstance(names[-1], str):
        changed["method"] = switched(changed.get("method"), names[-1], [path[1] for path, _ in pairs if len(path) > 1])
    for path, value in pairs:
        _put(changed, path, value)
    if name_of(changed.get("method")) == DENSE and ["train", "dense_beside"] not in [path for path, _ in pairs]:
        changed["train"] = {key: value for key, value in changed.get("train", {}).items() if key != "dense_beside"}
    return changed


def name_of(block: Any) -> Any:
    """The name of a model or method, which may be given as a name alone."""
    return block.get("name") if isinstance(block, Mapping) else block


def parse(override: str) -> tuple[list[str], Any]:
    """The path and the value of `a.b=c`; the value is read as YAML."""
    path, equals, text = override.partition("=")
    steps = path.strip().split(".")
    if not equals or not all(steps):
        raise ValueError(f"--set {override}: give a path and a value, such as --set train.epochs=12")
    return steps, read_value(text, f"--set {override}")


def switched(method: Any, name: str, overridden: Sequence[str] = ()) -> Any:
    """A method block for another method: what both have and the target sparsity stay, the rest is dropped with a warning."""
    block = {"name": method} if isinstance(method, str) else dict(method or {})
    if block.get("name") == name or name not in method_names():
        return {**block, "name": name}
    allowed = field_names(name)
    fields = {field: value for field, value in block.items() if field in allowed}
    sparsity = next((block[field] for field in _SPARSITIES if isinstance(block.get(field), float)), None)
    for field in _SPARSITIES:
        if sparsity is not None and field in allowed and field not in overridden:
            fields[field] = sparsity
    foreign = [field for field in block if field not in allowed and field != "name"]
    dropped = [field for field in foreign if not (sparsity == block[field] in fields.values())]
    if dropped and name != DENSE:
        warn(f"method {name} has no {', '.join(dropped)}: the recipe's values for {block.get('name')} are left out")
    return {"name": name, **fields}


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Both blocks, deeply; where both say something the change wins, and lists are replaced as a whole."""
    result = {key: merged(value, {}) if isinstance(value, Mapping) else value for key, value in base.items()}
    for key, value in change.items():
        inside = result.get(key)
        if isinstance(value, Mapping):
            result[key] = merged(inside if isinstance(inside, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def _put(block: dict[str, Any], path: Sequence[str], value: Any) -> None:
    inner = block
    for place, step in enumerate(path[:-1]):
        below = inner.get(step)
        if below is None or below is True:
            below = {}
        elif isinstance(below, str) and step in ("model", "method"):
            below = {"name": below}
        elif not isinstance(below, dict):
            here = ".".join(path[: place + 1])
            raise ValueError(f"--set {'.'.join(path)}: {here} is {below!r}, not a block: there is nothing below it")
        inner[step] = below
        inner = below
    inner[path[-1]] = value
