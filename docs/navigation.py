"""Hooks of mkdocs: pages of methods and of results appear in the navigation by themselves; options of commands stay whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

COMMANDS = re.compile(r'(?:(?<!</span>)<code>|<span class="go">)[^<]+')  # in a line of text, in a block of commands
OPTION = re.compile(r"(?<![^\s(/>])--?[a-z][\w-]*")


def on_config(config: Any) -> Any:
    """Add the folders' pages in front of the reference, each folder's README first."""
    folders = {name: pages(Path(config["docs_dir"]), name) for name in ("methods", "results")}
    sections = [{name.capitalize(): found} for name, found in folders.items() if found]
    config["nav"][-1:-1] = sections
    return config


def pages(docs: Path, folder: str) -> list[str]:
    found = [path.relative_to(docs).as_posix() for path in (docs / folder).rglob("*.md")]
    return sorted(found, key=lambda name: (not name.endswith("README.md"), name))


def on_page_content(html: str, **_: Any) -> str:
    """Mark the options, since browsers break `--set` after its first hyphen."""
    return COMMANDS.sub(lambda code: OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)
