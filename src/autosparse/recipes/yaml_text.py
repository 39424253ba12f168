"""YAML as recipes need it: 1e-3 is a number, `no` is a word, and a key given twice is an error."""

from __future__ import annotations

import re
from typing import Any

import yaml

_PLAIN = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("tag:yaml.org,2002:float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("tag:yaml.org,2002:merge", r"<<", ["<"]),
)


_TAGS: dict[type[yaml.Node], set[str]] = {
    yaml.ScalarNode: {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "merge")},
    yaml.SequenceNode: {"tag:yaml.org,2002:seq"},
    yaml.MappingNode: {"tag:yaml.org,2002:map"},
}
LARGEST = 10_000  # values of a document with its aliases written out; a recipe has about a hundred


class _Loader(yaml.SafeLoader):
    """Plain words as YAML 1.2 reads them; PyYAML's own rules are those of 1.1, where 1e-3 is text and `no` is false."""

    # emptied here, not changed: the table belongs to the class above
    yaml_implicit_resolvers = {}  # noqa: RUF012

    def construct_document(self, node: yaml.Node) -> Any:
        _check_size(node)
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag not in _TAGS[type(node)]:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")[:40]
            raise yaml.MarkedYAMLError(
                problem=f"the tag {tag} does not belong here; write the value without it", problem_mark=node.start_mark
            )
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError) as error:  # a tag that the text behind it does not fit, or a number of many digits
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{str(node.value)[:40]!r} cannot be read as {kind}", problem_mark=node.start_mark
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                raise yaml.MarkedYAMLError(problem=f"line {line}: a key must be a word")
            if key.value in lines and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(
                    problem=f"key {key.value!r} is given twice, in lines {lines[key.value]} and {line}; keep one"
                )
            lines[key.value] = line
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Short lists on one line, blocks below each other."""

    # a string that _Loader would read as a number or a word must be quoted by the same rules
    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
_Loader.add_constructor("tag:yaml.org,2002:float", lambda _, node: float(node.value))
_Dumper.add_representer(float, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:float", _number(value)))
_Dumper.add_representer(list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True))


def _check_size(root: yaml.Node) -> None:
    """Refuse aliases that write out to more than LARGEST values: a few lines can stand for billions."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in open_nodes:
            raise yaml.MarkedYAMLError(problem="an alias stands for a block that it is part of", problem_mark=node.start_mark)
        if id(node) not in sizes:
            open_nodes.add(id(node))
            inner = [] if isinstance(node, yaml.ScalarNode) else node.value
            parts = [part for entry in inner for part in (entry if isinstance(entry, tuple) else (entry,))]
            sizes[id(node)] = 1 + sum(map(size, parts))
            open_nodes.remove(id(node))
        return sizes[id(node)]

    if size(root) > LARGEST:
        raise yaml.YAMLError(
            f"it holds more than {LARGEST:,} values once its aliases are written out; a recipe needs far fewer"
        )


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # PyYAML folds rare line breaks such as U+0085 into spaces, unless they are written as escapes
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)


def _number(value: float) -> str:
    text = repr(value)
    return text if "e" not in text or "." in text else text.replace("e", ".0e")


def read_value(text: str, source: str) -> Any:
    """What a piece of YAML says; mistakes name the source and the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{source}{place}: {error.problem or error}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{source}: {error}") from None
    except RecursionError:
        raise ValueError(f"{source}: its blocks are nested too deeply") from None


def read_block(text: str, source: str) -> dict[str, Any]:
    """A YAML file that holds keys and values."""
    value = read_value(text, source)
    if not isinstance(value, dict):
        kind = "nothing" if value is None else f"a {type(value).__name__}"
        raise ValueError(f"{source}: a recipe is a block of `key: value` lines, found {kind}")
    return value


def write_block(block: dict[str, Any]) -> str:
    """YAML in the given order, one key per line."""
    return yaml.dump(block, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=120)
