"""Follows every link of the built site and of the project's papers, without a network: python docs/check_links.py build/site.

Addresses of other sites are only looked at: https, and no address of the project that pyproject.toml does not know.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
PAPERS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


class Page(HTMLParser):
    """The links of a page and the places in it that links can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.places |= {value for name in ("id", "name") if (value := values.get(name))}
        self.links += [value for name in ("href", "src") if (value := values.get(name))]


def broken_in_site(site: Path) -> list[str]:
    """Links of the site that lead nowhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are made for the root of a server
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data", "javascript"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                broken.append(f"{path.relative_to(site)}: {link} (there is no such place)")
    return broken


def broken_in_papers() -> list[str]:
    """Links of README and the others to files that do not exist."""
    broken = []
    for name in PAPERS:
        for link in LINK.findall((ROOT / name).read_text(encoding="utf-8")):
            parts = urlsplit(link)
            if not parts.scheme and parts.path and not (ROOT / unquote(parts.path)).exists():
                broken.append(f"{name}: {link}")
            if parts.scheme == "http":
                broken.append(f"{name}: {link} is not https")
    return broken


def main(arguments: list[str]) -> int:
    site = Path(arguments[0]).resolve() if arguments else None
    broken = broken_in_papers() + (broken_in_site(site) if site else [])
    for line in broken:
        print(f"broken link: {line}", file=sys.stderr)
    if not broken:
        print("all links lead somewhere")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
