"""Metadata that depend on where the project is hosted: `repository` in pyproject.toml, the only place that says it.

While it is empty, packages name no address and links of the README to files of the repository are plain words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
PAGES = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """The fields `urls` and `readme` of the package."""
    address = str(settings["repository"]).rstrip("/")
    text = linked(Path("README.md").read_text(encoding="utf-8"), address)
    return {"urls": urls(address), "readme": {"text": text, "content-type": "text/markdown"}}


def urls(address: str) -> dict[str, str]:
    """Addresses for the package index; none while the project has no home."""
    if not address:
        return {}
    pages = {name: f"{address}/blob/HEAD/{path}" for name, path in PAGES.items()}
    return {"Repository": address, "Issues": f"{address}/issues", **pages}


def linked(text: str, address: str) -> str:
    """The README with links that work outside the repository."""

    def replaced(link: re.Match[str]) -> str:
        target = link["target"]
        if target.startswith(("http:", "https:", "#")):
            return link[0]
        if not address:
            return "" if link["image"] else link["text"]
        return f"{link['image']}[{link['text']}]({address}/{'raw' if link['image'] else 'blob'}/HEAD/{target})"

    # a picture inside a link first, so that the link around it is seen whole
    pictures = re.compile(r"\[(?P<inner>!\[[^\]]*\]\([^)\s]+\))\]\((?P<target>[^)\s]+)\)")
    return LINK.sub(replaced, pictures.sub(lambda each: each["inner"], text))
