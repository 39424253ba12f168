"""Recipe files: found by name or path, and merged with what they extend; plain blocks that nothing has checked yet."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from autosparse.common.words import did_you_mean
from autosparse.recipes.overrides import merged, name_of
from autosparse.recipes.yaml_text import read_block, write_block

# What a file says of itself: a recipe that extends it does not inherit these.
_HEAD = ("name", "description", "paper", "extends")
_SUFFIXES = (".yaml", ".yml")


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def find_recipe(name_or_path: str | Path, beside: Path | None = None) -> Path:
    """The file of a recipe; `beside` is the file that names it, for paths relative to that."""
    text = str(name_or_path)
    looks_like_path = isinstance(name_or_path, Path) or text.endswith(_SUFFIXES) or "/" in text or "\\" in text
    if not looks_like_path:
        names = recipe_names()
        if text in names:
            return _folder() / f"{text}.yaml"
        hint = did_you_mean(text, names, ";")
        raise ValueError(f"there is no recipe {text!r}{hint} `autosparse recipes` lists all; a file of your own ends in .yaml")
    path = beside.parent / text if beside else Path(text)
    if not path.is_file():
        raise FileNotFoundError(f"recipe file {path} does not exist")
    return path


def merged_block(path: Path) -> dict[str, Any]:
    """A recipe file as one plain block, with what it extends filled in; not checked yet."""
    return _merged_block(path, [])


def _merged_block(path: Path, trail: list[Path]) -> dict[str, Any]:
    if path.resolve() in trail:
        circle = " -> ".join(file.name for file in (*trail, path))
        raise ValueError(f"recipes extend each other in a circle: {circle}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8") from None
    block = read_block(text, str(path))
    head = {"name": path.stem, **{key: block.pop(key) for key in _HEAD if key in block}}
    parent = head.pop("extends", None)
    if parent is None:
        return {**head, **block}
    if not isinstance(parent, str):
        raise ValueError(f"{path}: extends: give the name of a recipe or a file beside this one, got {parent!r}")
    base = _merged_block(find_recipe(parent, beside=path), [*trail, path.resolve()])
    inherited = {key: value for key, value in base.items() if key not in _HEAD}
    if name_of(block.get("method")) not in (None, name_of(inherited.get("method"))):
        inherited["method"] = {}  # the fields of one method mean nothing to another
    return {**head, **merged(inherited, block)}


def recipe_text(name_or_path: str | Path) -> str:
    """A recipe to read and edit: its own file where it stands alone, else with what it extends filled in."""
    path = find_recipe(name_or_path)
    text = path.read_text(encoding="utf-8")
    if "extends" not in read_block(text, str(path)):
        return text
    block = merged_block(path)
    block.pop("name")
    return write_block(block)


def _folder() -> Path:
    return Path(str(resources.files("autosparse.recipes"))) / "library"
