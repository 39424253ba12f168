"""The public surface: names, paths, parameters and commands that users have in their code and scripts."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

import autosparse
from autosparse import cli

FENCE = re.compile(r"^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"\bautosparse(?:\.[A-Za-z_]\w*)+")
REFERENCE = re.compile(r"^::: (?P<path>\S+)(?P<options>(?:\n +.+)*)", re.MULTILINE)
MEMBERS = re.compile(r"members: \[(?P<names>.*)\]")


def resolve(path: str) -> Any:
    """What a dotted path names, as `from PARENT import NAME` would find it; the parent may be a class too."""
    parent, _, name = path.rpartition(".")
    if not parent:
        return importlib.import_module(name)
    try:
        return getattr(importlib.import_module(parent), name)
    except ModuleNotFoundError:
        return getattr(resolve(parent), name)
    except AttributeError:
        return importlib.import_module(path)


def documents(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def examples(root: Path) -> list[ast.Module]:
    """The Python blocks of the pages, and the examples."""
    blocks = [block for page in documents(root) for block in FENCE.finditer(page.read_text(encoding="utf-8"))]
    codes = [textwrap.dedent(block["code"]) for block in blocks]
    codes += [path.read_text(encoding="utf-8") for path in sorted((root / "examples").glob("*.py"))]
    return [ast.parse(code) for code in codes]


def import_statements(root: Path) -> list[str]:
    """Every import of ours in the examples."""
    return sorted({ast.unparse(node) for code in examples(root) for node in ast.walk(code) if _imports_ours(node)})


def _imports_ours(node: ast.AST) -> bool:
    names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.split(".")[0] == "autosparse" for name in names)


def used_names(root: Path) -> list[str]:
    """What the examples take from `autosparse` without an import of its own, such as autosparse.models.resnet50."""
    nodes = [node for code in examples(root) for node in ast.walk(code) if isinstance(node, ast.Attribute)]
    return sorted({name for name in map(ast.unparse, nodes) if DOTTED.fullmatch(name)})


def mentioned_names(root: Path) -> list[str]:
    """Dotted names in the text and code of the pages that lead somewhere; file names such as autosparse.pt do not."""
    found = {name for page in documents(root) for name in DOTTED.findall(page.read_text(encoding="utf-8"))}
    return sorted(name for name in found if _leads_somewhere(name))


def _leads_somewhere(path: str) -> bool:
    try:
        resolve(path)
    except (ImportError, AttributeError):
        return False
    return True


def reference_entries(root: Path) -> dict[str, list[str]]:
    """The paths that docs/api.md takes docstrings from, with the members that it lists."""
    entries = REFERENCE.finditer((root / "docs/api.md").read_text(encoding="utf-8"))
    members = {entry["path"]: MEMBERS.search(entry["options"]) for entry in entries}
    return {path: re.findall(r"\w+", listed["names"]) if listed else [] for path, listed in members.items()}


def public_names(module: str) -> list[str]:
    """What a module defines for others."""
    values = vars(importlib.import_module(module))
    return sorted(name for name, value in values.items() if name[0] != "_" and getattr(value, "__module__", None) == module)


def parameters_of(path: str) -> dict[str, dict[str, str]] | None:
    """Parameters with their defaults as text ("" where there is none), for what can be called."""
    value = resolve(path)
    if not callable(value) or (isinstance(value, type) and issubclass(value, Warning)):
        return None
    parameters = inspect.signature(value).parameters.values()
    defaults = {each.name: "" if each.default is each.empty else _shown(each.default) for each in parameters}
    kinds = {"positional": inspect.Parameter.POSITIONAL_OR_KEYWORD, "keyword": inspect.Parameter.KEYWORD_ONLY}
    return {name: {each.name: defaults[each.name] for each in parameters if each.kind is kind} for name, kind in kinds.items()}


def _shown(default: object) -> str:
    plain = default is None or isinstance(default, bool | int | float | str | tuple)
    return repr(default) if plain else f"<{type(default).__name__}>"


def signatures(root: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Of everything public that can be called; a Sparsifier is made by `sparsify` alone."""
    names = [name for name in autosparse.__all__ if name not in ("__version__", "Sparsifier")]
    paths = [f"autosparse.{name}" for name in names]
    paths += [f"autosparse.Sparsifier.{name}" for name in reference_entries(root)["autosparse.sparsifier.Sparsifier"]]
    paths += [f"autosparse.deployment.{name}" for name in ("save_torch", "save_onnx", "read_facts", "SparseModel")]
    paths += ["autosparse.integrations.transformers.sparsify_trainer", "autosparse.integrations.lightning.SparseTraining"]
    found = {path: parameters_of(path) for path in sorted(paths)}
    return {path: parameters for path, parameters in found.items() if parameters is not None}


def commands() -> dict[str, dict[str, Any]]:
    """Every verb with its options and arguments; the command itself is ""."""
    return dict(_verbs("", typer.main.get_command(cli.app)))


def _verbs(name: str, command: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    yield (
        name,
        {
            "arguments": [{"name": each.name, "required": each.required, "many": each.nargs == -1} for each in arguments],
            "options": {flag: _kind(each) for each in options for flag in (*each.opts, *each.secondary_opts)},
        },
    )
    for verb, inner in getattr(command, "commands", {}).items():
        yield from _verbs(f"{name} {verb}".strip(), inner)


def _kind(option: Any) -> str:
    return "flag" if option.is_flag else "repeatable value" if option.multiple else "value"


def recipe_keys(schema: dict[str, Any]) -> list[str]:
    """The dotted keys of recipes in their JSON schema; fields of methods are in their signatures."""
    return sorted(set(_keys(schema, schema, "")))


def _keys(node: Any, schema: dict[str, Any], prefix: str) -> Iterator[str]:
    if "$ref" in node:
        yield from _keys(schema["$defs"][node["$ref"].rpartition("/")[2]], schema, prefix)
    for choice in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from _keys(choice, schema, prefix)
    for name, inner in node.get("properties", {}).items():
        yield f"{prefix}{name}"
        if prefix + name != "method":
            yield from _keys(inner, schema, f"{prefix}{name}.")
